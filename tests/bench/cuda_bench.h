// cuda_bench.h: what the files of bench_cuda share: a device with a pool of random bytes that stands for every weight and cache, single
// operations on it, and the median time of a captured piece of work.
#ifndef ATSI_TESTS_BENCH_CUDA_BENCH_H
#define ATSI_TESTS_BENCH_CUDA_BENCH_H

#include "formats/dtype.h"
#include "kernels/device.h"
#include "kernels/layout.h"

enum {
    N_REPEATS = 7,
    POOL_MIB = 3072
};

struct bench {
    struct atsi_device *d;
    struct atsi_stream *s;
    struct atsi_event *from, *to;
    struct atsi_error err;
    struct atsi_program program; // what the device was prepared for
    uint8_t *pool;               // random bytes that stand for every weight and cache
    uint64_t pool_bytes;
    uint64_t next;  // rotates through the pool
    float *rows[4]; // activations, ROWS_MAX rows of WIDTH_MAX each
    int32_t *ids;
    float *logits, *weights; // of routers
    void *round, *mapped_round_dev;
    struct atsi_round *mapped_round;
    double copy_bytes_per_us;
};
enum {
    ROWS_MAX = 2048,
    WIDTH_MAX = 34816
};

// Ends the program with the device's message unless status is ATSI_OK.
void bench_ok(const struct bench *b, enum atsi_status status);
#define DO(b, call) bench_ok(b, (b)->d->ops->call)

void bench_open(struct bench *b);
void bench_close(struct bench *b);

// The next `bytes` of the pool, not used for the longest time.
void *rotate(struct bench *b, uint64_t bytes);
void set_round(struct bench *b, int n_tokens, int first_pos);
// Median time of `graph`, which holds n pieces of work, for one piece. Frees the graph.
double time_graph(struct bench *b, void *graph, int n);
void report_bytes(const struct bench *b, const char *what, double us, double bytes);
void report_operations(const char *what, double us, double operations);

struct atsi_tensor tensor_of(enum atsi_dtype dtype, uint64_t n_cols, uint64_t n_out, uint64_t n_experts);
static inline struct atsi_rows_ref rows(float *data, uint32_t width) {
    return (struct atsi_rows_ref){data, width, width};
}
void launch(struct bench *b, struct atsi_op_call *call, int n_tokens);
void matmul(struct bench *b, const struct atsi_tensor *t, float *in, float *out, bool add, int n_tokens);

struct heads {
    uint32_t n_heads, n_kv_heads, dim;
};
// Rows of q, k and v stand side by side at qkv.
void attention(struct bench *b, struct heads h, enum atsi_dtype kv_type, uint32_t capacity, float *qkv, float *out,
               int n_tokens);

// Rounds of whole models (cuda_models.c).
void bench_models(struct bench *b);

#endif
