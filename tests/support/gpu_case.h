// gpu_case.h: the operations of an op_case on a device, a card or the simulated one, and how far its results are from the CPU's.
#ifndef ATSI_TESTS_SUPPORT_GPU_CASE_H
#define ATSI_TESTS_SUPPORT_GPU_CASE_H

#include "kernels/device.h"
#include "tests/support/op_case.h"
#include "tests/support/quant_data.h"

// A weight of any type with random bits, packed as the planner packs it: ne2 matrices [ne0, ne1].
int32_t gpu_case_weight(struct op_case *c, enum atsi_dtype dtype, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                        enum quant_fill fill, struct quant_rng *rng);

// Like op_case_run on the device. With `captured`, every round after the first of its size replays a captured graph. Device copies
// of the buffers that no op reads before it writes them start as NaN.
void gpu_case_run(struct op_case *c, struct atsi_device *d, uint32_t chunk, uint32_t first_pos, bool captured);

// Runs the case on the CPU in one round and on the device in rounds of every chunk, and compares every buffer: integers
// exactly, floats by the norm of the difference over the norm of the CPU's rows. Prints the largest ratio under `what`.
void gpu_case_check(struct op_case *c, struct atsi_device *d, const uint32_t *chunks, int n_chunks, double tolerance,
                    const char *what);
// Every buffer has the same bits, whether the device may join operations, captured or not, or each is waited for before the next.
void gpu_case_check_alone(struct op_case *c, struct atsi_device *d, uint32_t chunk, const char *what);

#endif
