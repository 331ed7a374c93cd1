// small_model.h: the program of program_builder.h with weights, on the host and on a simulated device, for tests that run it.
#ifndef ATSI_TESTS_SUPPORT_SMALL_MODEL_H
#define ATSI_TESTS_SUPPORT_SMALL_MODEL_H

#include "kernels/sim/sim_device.h"
#include "runtime/executor.h"
#include "tests/support/program_builder.h"

enum {
    TEST_MODEL_UNITS = 16, // at most
    TEST_MODEL_TENSORS = 32,
    TEST_MODEL_EXPERTS = 4,
    TEST_MODEL_USED = 2, // a token
    TEST_MODEL_EXPERT_UNITS = 3
};

struct test_model {
    struct atsi_plan plan;
    void *host[TEST_MODEL_TENSORS];
    const void *device[TEST_MODEL_TENSORS], *mapped[TEST_MODEL_TENSORS];
    void *blocks[TEST_MODEL_TENSORS];
    // Experts resident one by one: those of ids, by the tables of both sides.
    struct atsi_experts_ref host_experts[TEST_MODEL_UNITS], device_experts[TEST_MODEL_UNITS];
    uint16_t ids[TEST_MODEL_EXPERTS];
    uint32_t n_resident;
    int32_t *slots;
    void *slots_dev, *residents[TEST_MODEL_UNITS]; // of the units that have experts
};

// xorshift64; the state is not zero.
uint64_t test_random(uint64_t *state);

// The same weights every time, on the host.
void test_model_build(struct test_model *m);
void test_model_free(struct test_model *m);
// Every tensor in pinned memory and on the device. Unloading asserts that nothing else is left there, and closes it.
void test_model_load(struct test_model *m, struct atsi_device *d);
void test_model_unload(struct test_model *m, struct atsi_device *d);
// Some experts, one at least, become resident one by one beside the model on the device; unloading takes them away. And between rounds: a
// resident one and one that is not change places.
void test_model_reside(struct test_model *m, struct atsi_device *d, uint64_t *random);
void test_model_exchange(struct test_model *m, struct atsi_executor *x, uint64_t *random);
// A fast card whose streams are delayed at random (seed 0: not at all), with the kernels of --isa reference.
struct atsi_device *test_open_sim(uint32_t delay_seed);
struct atsi_executor_params test_model_params(const struct test_model *m, struct atsi_device *d); // d NULL: CPU only

#endif
