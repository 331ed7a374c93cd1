// Matmul kernels, each type, checked against the reference and timed: decode (cold weights, against the memory's read bandwidth measured in the same run) and prefill.
//
//   bench_matmul [--types A,B] [--rows N] [--cols N] [--tokens N] [--threads N] [--isa NAME] [--runs N] [--cold MIB] [--ahead 0|1]
//
// Decode rotates over copies of the matrix that together exceed the last-level cache (--cold, 384 MiB; 0 times one matrix again
// and again, which for a small one shows what the instructions alone take). Every matrix is timed by itself and
// the tenth percentile counts, so that a busy neighbour costs time but not truth; the ceiling, reading pieces of the same
// memory, is measured the same way, before and after. With one thread times are its processor time, with more wall time. Cycles
// are a thread's, of the clock at which a chain of additions ran in the same run.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/error.h"
#include "formats/base/sort.h"
#include "kernels/cpu/pool.h"
#include "kernels/layout.h"
#include "kernels/matmul.h"
#include "tests/support/quant_data.h"

enum {
    COLD_MIB = 384
};

struct options {
    const char *types; // NULL: all
    uint32_t n_rows, n_cols, n_tokens;
    int n_threads, n_runs, cold_mib;
    int ahead; // whether weights are asked for ahead; -1: as is best on this machine
    const char *isa;
};

struct bench {
    struct options o;
    struct atsi_pool *pool;
    struct atsi_matmul_kernels kernels;
    size_t memory_bytes;
    uint8_t *memory; // filled with weights of the type in question
    double clock_hz;
};

static double now(const struct bench *b) {
    struct timespec t;
    clock_gettime(atsi_pool_n_threads(b->pool) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Every addition waits for the one before: one a cycle on any CPU. The fastest of a few tries.
static double clock_hz(const struct bench *b) {
    enum {
        ADDITIONS = 1 << 20
    };
    double best = 0;
    for (int run = 0; run < 20; run++) {
        uint64_t sum = (uint64_t)run;
        double start = now(b);
        for (int i = 0; i < ADDITIONS; i++) {
            sum += 1;
            __asm__ volatile("" : "+r"(sum));
        }
        double hz = ADDITIONS / (now(b) - start);
        if (hz > best) best = hz;
    }
    return best;
}

// ---- the ceiling ------------------------------------------------------------------------------------------------

enum {
    READ_PIECE = 4 << 20
};

struct samples {
    double *times;
    size_t n;
};

static double low_decile(struct samples *s) {
    atsi_sort_doubles(s->times, s->n);
    return s->times[s->n / 10];
}

struct read_job {
    const struct bench *b;
    uint64_t (*read)(const uint8_t *memory, size_t n_bytes);
    struct samples samples; // of all pieces and runs
    _Atomic uint64_t sink;
};

static inline __attribute__((always_inline)) uint64_t xor_all(const uint8_t *memory, size_t n_bytes) {
    typedef uint64_t vec __attribute__((vector_size(64)));
    const vec *p = (const void *)memory;
    vec a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i + 4 <= n_bytes / sizeof(vec); i += 4) {
        a ^= p[i];
        b ^= p[i + 1];
        c ^= p[i + 2];
        d ^= p[i + 3];
    }
    a ^= b ^ c ^ d;
    return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

// In narrow and in wide loads: which of them a core's prefetchers like better differs.
static uint64_t read_narrow(const uint8_t *memory, size_t n_bytes) { return xor_all(memory, n_bytes); }
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static uint64_t
read_wide(const uint8_t *memory, size_t n_bytes) {
    return xor_all(memory, n_bytes);
}

static void read_share(void *context, int i_thread, int n_threads) {
    struct read_job *job = context;
    size_t share = READ_PIECE / (size_t)n_threads / 128 * 128;
    for (size_t at = 0; at + READ_PIECE <= job->b->memory_bytes; at += READ_PIECE) {
        atsi_pool_barrier(job->b->pool);
        double start = now(job->b);
        atomic_fetch_xor(&job->sink, job->read(job->b->memory + at + (size_t)i_thread * share, share));
        atsi_pool_barrier(job->b->pool);
        if (i_thread == 0) job->samples.times[job->samples.n++] = now(job->b) - start;
    }
}

static double read_gb_s_by(const struct bench *b, uint64_t (*read)(const uint8_t *, size_t)) {
    struct read_job job = {.b = b, .read = read};
    job.samples.times = malloc(sizeof(double) * (size_t)b->o.n_runs * (b->memory_bytes / READ_PIECE));
    for (int run = 0; run < b->o.n_runs; run++) atsi_pool_run(b->pool, read_share, &job);
    double time = low_decile(&job.samples);
    free(job.samples.times);
    return READ_PIECE / time * 1e-9;
}

static double read_gb_s(const struct bench *b) {
    double narrow = read_gb_s_by(b, read_narrow), wide = read_gb_s_by(b, read_wide);
    return narrow > wide ? narrow : wide;
}

// ---- a kernel ---------------------------------------------------------------------------------------------------

struct matmul_job {
    const struct bench *b;
    struct atsi_matmul_args args;
    const float *in;
    void *quantised; // for the check; NULL where the kernels read floats
    enum atsi_input_kind kind;
    void *prepared; // what is timed reads, NULL where that is floats
    uint32_t n_matrices;
    size_t matrix_bytes;
    struct samples samples;
    double start; // of the matrix being timed, 0: none yet
};

// A matrix ends where the next one begins.
static void end_matrix(struct matmul_job *j) {
    double time = now(j->b);
    if (j->start > 0) j->samples.times[j->samples.n++] = time - j->start;
    j->start = time;
}

static void prepare_share(const struct matmul_job *j, uint32_t i_share, uint32_t n_shares) {
    const struct atsi_matmul_args *a = &j->args;
    if (j->kind == ATSI_INPUT_INT8)
        atsi_quantise_rows(&j->b->kernels, j->in, a->n_cols, a->n_tokens, a->n_cols, j->prepared, (int)i_share,
                           (int)n_shares);
    else if (j->kind != ATSI_INPUT_F32)
        for (uint32_t t = i_share; t < a->n_tokens; t += n_shares)
            atsi_prepare_input(&j->b->kernels, j->kind, j->in + (size_t)t * a->n_cols, a->n_cols,
                               (uint8_t *)j->prepared + t * a->in_stride);
}

// Every matrix once, as an executor does it: a phase in which the inputs are prepared, and one for the chunks.
static uint32_t begin_phase(void *context, uint32_t phase) {
    struct matmul_job *j = context;
    int n_threads = atsi_pool_n_threads(j->b->pool);
    if (phase % 2 == 1) return atsi_matmul_n_chunks(&j->b->kernels, &j->args, n_threads);
    end_matrix(j);
    return (uint32_t)n_threads;
}

static void do_item(void *context, uint32_t phase, uint32_t item, int i_thread) {
    const struct matmul_job *j = context;
    struct atsi_matmul_args a = j->args;
    int n_threads = atsi_pool_n_threads(j->b->pool);
    (void)i_thread;
    a.weight = (const uint8_t *)a.weight + phase / 2 * j->matrix_bytes;
    if (phase % 2 == 0)
        prepare_share(j, item, (uint32_t)n_threads);
    else
        atsi_matmul_chunk(&j->b->kernels, &a, n_threads, item);
}

static void time_matrices(struct matmul_job *j) {
    struct atsi_pool_work work = {.n_phases = 2 * j->n_matrices, .begin = begin_phase, .item = do_item};
    j->start = 0;
    atsi_pool_share(j->b->pool, &work, j);
    end_matrix(j);
}

// The first rows and tokens against the reference: a kernel that is wrong is not worth timing.
static bool same_as_reference(const struct matmul_job *j) {
    struct atsi_matmul_kernels ref;
    atsi_matmul_kernels_init(&ref, ATSI_ISA_REFERENCE);
    struct atsi_matmul_args a = j->args;
    if (a.n_tokens > 9) a.n_tokens = 9;
    a.in = j->in;
    a.in_stride = a.n_cols * sizeof(float);
    if (j->quantised != NULL) {
        atsi_quantise_rows(&j->b->kernels, j->in, a.n_cols, a.n_tokens, a.n_cols, j->quantised, 0, 1);
        a.in = j->quantised;
        a.in_stride = atsi_act_row_bytes(a.n_cols);
    }
    uint32_t n_tiles = atsi_matmul_tiles(a.n_rows) < 4 ? atsi_matmul_tiles(a.n_rows) : 4;
    uint32_t n_rows = n_tiles * ATSI_TILE_ROWS < a.n_rows ? n_tiles * ATSI_TILE_ROWS : a.n_rows;
    float *expected = malloc((size_t)a.n_tokens * a.out_stride * sizeof(float));
    j->b->kernels.matmul[a.dtype](&a, 0, n_tiles);
    float *got = a.out;
    a.out = expected;
    ref.matmul[a.dtype](&a, 0, n_tiles);
    bool same = true;
    for (uint32_t t = 0; t < a.n_tokens; t++)
        same = same && memcmp(got + t * a.out_stride, expected + t * a.out_stride, n_rows * sizeof(float)) == 0;
    free(expected);
    return same;
}

static bool bench_type(struct bench *b, enum atsi_dtype dtype, double ceiling) {
    const struct options *o = &b->o;
    uint64_t row_bytes = atsi_dtype_row_bytes(dtype, o->n_cols);
    if (row_bytes == 0) return true;
    const uint64_t ne[4] = {o->n_cols, o->n_rows, 1, 1};
    size_t matrix_bytes = atsi_layout_bytes(dtype, atsi_layout_of(dtype), ne);
    size_t cold_bytes = o->n_tokens == 1 ? (size_t)o->cold_mib << 20 : 0;
    uint32_t n_matrices = matrix_bytes < cold_bytes ? (uint32_t)(cold_bytes / matrix_bytes) : 1;
    if (matrix_bytes > b->memory_bytes) return true;

    // One packed matrix, then copies of it.
    struct quant_rng rng = {1};
    uint8_t *rows = malloc(o->n_rows * row_bytes);
    quant_fill_weights(dtype, QUANT_RANDOM, &rng, (uint64_t)o->n_rows * o->n_cols, rows);
    atsi_layout_pack(dtype, atsi_layout_of(dtype), rows, o->n_rows, o->n_cols, b->memory);
    for (uint32_t m = 1; m < n_matrices; m++) memcpy(b->memory + m * matrix_bytes, b->memory, matrix_bytes);
    free(rows);

    float *in = aligned_alloc(64, (size_t)o->n_tokens * o->n_cols * sizeof(float) + 64);
    float *out = aligned_alloc(64, (size_t)o->n_tokens * o->n_rows * sizeof(float) + 64);
    for (size_t i = 0; i < (size_t)o->n_tokens * o->n_cols; i++) in[i] = quant_uniform(&rng);
    struct matmul_job job = {.b = b, .in = in, .n_matrices = n_matrices, .matrix_bytes = matrix_bytes};
    job.args = (struct atsi_matmul_args){.dtype = dtype,
                                         .n_rows = o->n_rows,
                                         .n_cols = o->n_cols,
                                         .weight = b->memory,
                                         .in = in,
                                         .in_stride = o->n_cols * sizeof(float),
                                         .out = out,
                                         .out_stride = o->n_rows,
                                         .n_tokens = o->n_tokens};
    if (atsi_matmul_input(dtype) == ATSI_INPUT_INT8)
        job.quantised = aligned_alloc(64, o->n_tokens * atsi_act_row_bytes(o->n_cols));
    job.kind = atsi_matmul_input_of(&b->kernels, dtype, o->n_tokens);
    if (job.kind != ATSI_INPUT_F32) {
        job.args.in_stride = atsi_input_row_bytes(job.kind, o->n_cols);
        job.args.in = job.prepared = aligned_alloc(64, o->n_tokens * job.args.in_stride);
    }
    bool same = same_as_reference(&job);
    int n_runs = n_matrices > 1 ? o->n_runs : o->n_runs * 32;
    job.samples.times = malloc(sizeof(double) * (size_t)n_runs * n_matrices);
    for (int run = 0; run < n_runs; run++) time_matrices(&job);
    double best = low_decile(&job.samples);
    free(job.samples.times);
    double gb_s = (double)(o->n_rows * row_bytes) / best * 1e-9, flops = 2.0 * o->n_rows * o->n_cols * o->n_tokens;
    double cycles = best * b->clock_hz * atsi_pool_n_threads(b->pool) * 512 / flops;
    printf("%-8s %-9s %6u %6u %6u %10.1f %8.2f %6.0f%% %9.1f %9.1f%s\n", atsi_dtype_name(dtype),
           atsi_isa_name(b->kernels.isa), o->n_rows, o->n_cols, o->n_tokens, best * 1e6, gb_s, 100 * gb_s / ceiling,
           flops / best * 1e-9, cycles, same ? "" : "  NOT the reference's result");
    fflush(stdout);
    free(job.quantised);
    free(job.prepared);
    free(in);
    free(out);
    return same;
}

static bool listed(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *at = list; at != NULL && *at != 0; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == 0)) return true;
    return list == NULL;
}

static bool parse(int argc, char **argv, struct options *o) {
    *o =
        (struct options){.n_rows = 4096, .n_cols = 4096, .n_tokens = 1, .n_runs = 7, .cold_mib = COLD_MIB, .ahead = -1};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--types") == 0)
            o->types = value;
        else if (strcmp(name, "--rows") == 0)
            o->n_rows = (uint32_t)atoi(value);
        else if (strcmp(name, "--cols") == 0)
            o->n_cols = (uint32_t)atoi(value);
        else if (strcmp(name, "--tokens") == 0)
            o->n_tokens = (uint32_t)atoi(value);
        else if (strcmp(name, "--threads") == 0)
            o->n_threads = atoi(value);
        else if (strcmp(name, "--runs") == 0)
            o->n_runs = atoi(value);
        else if (strcmp(name, "--cold") == 0)
            o->cold_mib = atoi(value);
        else if (strcmp(name, "--ahead") == 0)
            o->ahead = atoi(value);
        else if (strcmp(name, "--isa") == 0)
            o->isa = value;
        else
            return false;
    }
    return argc % 2 == 1 && o->cold_mib >= 0 && o->n_rows > 0 && o->n_cols > 0 && o->n_tokens > 0 && o->n_runs > 0;
}

int main(int argc, char **argv) {
    struct bench b = {0};
    struct atsi_error err;
    enum atsi_isa isa;
    if (!parse(argc, argv, &b.o)) {
        fprintf(stderr, "usage: bench_matmul [--types A,B] [--rows N] [--cols N] [--tokens N] [--threads N] [--isa "
                        "NAME] [--runs N] [--cold MIB] [--ahead 0|1]\n");
        return 2;
    }
    if (atsi_isa_select(b.o.isa, &isa, &err) != ATSI_OK || atsi_pool_create(b.o.n_threads, &b.pool, &err) != ATSI_OK) {
        fprintf(stderr, "bench_matmul: %s\n", err.text);
        return (int)err.status;
    }
    atsi_matmul_kernels_init(&b.kernels, isa);
    if (b.o.ahead >= 0) atsi_matmul_kernels_init_ahead(&b.kernels, isa, b.o.ahead > 0);
    b.memory_bytes = (size_t)(b.o.cold_mib > COLD_MIB ? b.o.cold_mib : COLD_MIB) << 20;
    b.memory = aligned_alloc(2 << 20, b.memory_bytes);
    if (b.memory == NULL) return 1;
    memset(b.memory, 1, b.memory_bytes);
    double ceiling = read_gb_s(&b);
    b.clock_hz = clock_hz(&b);
    printf("%d threads, read bandwidth %.1f GB/s, clock %.2f GHz\n", atsi_pool_n_threads(b.pool), ceiling,
           b.clock_hz * 1e-9);
    printf("type     isa         rows   cols tokens    time us     GB/s ceiling   GFLOP/s cycles/256\n");
    bool same = true;
    for (int i = 0; i < QUANT_DATA_N_TYPES; i++)
        if (listed(b.o.types, atsi_dtype_name(QUANT_DATA_TYPES[i])))
            same = bench_type(&b, QUANT_DATA_TYPES[i], ceiling) && same;
    printf("read bandwidth at the end %.1f GB/s\n", read_gb_s(&b));
    free(b.memory);
    atsi_pool_free(b.pool);
    return same ? 0 : 1;
}
