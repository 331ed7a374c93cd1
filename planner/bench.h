// bench.h: one operation of a program on made-up operands, timed with the kernels that the runtime runs.
#ifndef ATSI_PLANNER_BENCH_H
#define ATSI_PLANNER_BENCH_H

#include "formats/device_profile.h"
#include "kernels/cpu/ops.h"
#include "kernels/device.h"

// Where operations are timed: the thread pool, or a device.
struct atsi_bench_side {
    enum atsi_backend backend;
    struct atsi_pool *pool; // CPU
    struct atsi_cpu *cpu;
    struct atsi_device *device; // GPU
    struct atsi_stream *stream;
    struct atsi_event *from, *to;
    void *staging; // pinned, ATSI_BENCH_STAGING_BYTES
    // Where weights and states stand: taken in turn, so that a byte is used again only after all the others. Made for the first
    // operation, after what the driver takes of the card has been measured.
    char *arena;
    uint64_t arena_bytes, arena_used;
    void *mapped; // the arena's host address where atsi_bench_map_weights made it; NULL: it is in the side's own memory
};
enum {
    ATSI_BENCH_STAGING_BYTES = 4 << 20,
    ATSI_BENCH_ROW_MAX = 64
};

// Makes the CPU side for rounds of the plan; n_threads 0: the default. Free with atsi_bench_close.
enum atsi_status atsi_bench_open_cpu(const struct atsi_plan *plan, int n_threads, struct atsi_bench_side *side,
                                     struct atsi_error *err);
// The device (borrowed) is prepared for rounds of the plan.
enum atsi_status atsi_bench_open_gpu(const struct atsi_plan *plan, struct atsi_device *device,
                                     struct atsi_bench_side *side, struct atsi_error *err);
// The GPU side's weights and states stand in pinned host memory, from where its kernels read them in place. Before the first operation.
enum atsi_status atsi_bench_map_weights(struct atsi_bench_side *side, const struct atsi_plan *plan,
                                        struct atsi_error *err);
void atsi_bench_close(struct atsi_bench_side *side);

// Median microseconds of op `i_op` in a round of n_tokens tokens in the middle of the planned context, and
// (largest - smallest) / median. Weights and states are as cold as in a round: every call has others (experts: other ids), from an arena
// larger than the side's caches, or as large as the model. Operations follow each other without a pause.
enum atsi_status atsi_bench_op(struct atsi_bench_side *side, const struct atsi_plan *plan, uint32_t i_op,
                               uint32_t n_tokens, double *us, double *spread, struct atsi_error *err);

// A part of an operation in rounds of one token.
struct atsi_bench_part {
    uint32_t i_op;
    uint32_t
        n_columns; // the first ones of its output: whole tiles of a matrix, whole slots of experts (kernels/narrow_call.h)
    // On the CPU every call in a list of its own, after a pause as long as the device often takes in a round. Else as above.
    bool alone;
};
// Median microseconds of it, as cold as above. Takes a third of the time that a whole operation is given.
enum atsi_status atsi_bench_part(struct atsi_bench_side *side, const struct atsi_plan *plan,
                                 const struct atsi_bench_part *part, double *us, struct atsi_error *err);

// Median microseconds of n_ops operations (2 to ATSI_BENCH_ROW_MAX, none that chooses experts or reads chosen ones) in a row, in a round of one
// token: each reads what others have written, as in the program, so that what the device joins is joined.
enum atsi_status atsi_bench_row(struct atsi_bench_side *side, const struct atsi_plan *plan, uint32_t first_op,
                                uint32_t n_ops, double *us, struct atsi_error *err);

// Median of n samples (sorts them) and (largest - smallest) / median.
double atsi_median(double *samples, int n, double *spread);

#endif
