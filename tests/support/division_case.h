// division_case.h: experts whose slots are divided between a device and the host by how many of a token's experts are resident
// (struct atsi_experts_ref), on any device. Failures end the test.
#ifndef ATSI_TESTS_SUPPORT_DIVISION_CASE_H
#define ATSI_TESTS_SUPPORT_DIVISION_CASE_H

#include "kernels/device.h"
#include "tests/support/gpu_case.h"

struct division_case {
    enum atsi_dtype dtype;
    uint32_t n_tokens, n_experts, n_used;
    uint32_t width; // of the rows and of an expert's results, a multiple of the type's block
    float resident; // share of the experts
    bool least;     // the device takes what is resident and no more
    bool part;      // one of two products of the same inputs is not divided
};

// A router, three products and random tables. What the device computes and what the host computes (with every instruction set that it
// has) are what each computes undivided, to the bit; slots of the other side stay as they are; copies put both together on either
// side. The device runs rounds of all tokens and of few.
void division_case_check(const struct division_case *x, struct atsi_device *d);
// Copies of slots of any width, to and from mapped memory.
void division_case_check_copies(struct atsi_device *d);

#endif
