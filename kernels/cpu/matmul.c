#include "kernels/matmul.h"

#include <string.h>

#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/quant.h"
#include "kernels/layout.h"

enum {
    // Uneven threads (busy neighbours, slower cores) lose at most about a quarter of a share.
    CHUNKS_PER_THREAD = 4,      // of one group of tokens, twice as many of several
    CHUNK_BYTES_MIN = 16 << 10, // below this the counter and the prefetchers' warm-up show
    CHUNK_BYTES_MAX = 256 << 10 // a chunk's weights and the activations of a block of tokens stay in a core's L2
};

enum atsi_input_kind atsi_matmul_input(enum atsi_dtype dtype) {
    if (dtype == ATSI_F32 || dtype == ATSI_F16 || dtype == ATSI_BF16) return ATSI_INPUT_F32;
    return atsi_quant_type(dtype) != NULL ? ATSI_INPUT_INT8 : ATSI_INPUT_UNSUPPORTED;
}

enum atsi_input_kind atsi_matmul_input_of(const struct atsi_matmul_kernels *k, enum atsi_dtype dtype,
                                          uint32_t n_tokens) {
    enum atsi_input_kind kind = atsi_matmul_input(dtype);
    if (k->many[dtype] == NULL || n_tokens < ATSI_MANY_TOKENS) return kind;
    return kind == ATSI_INPUT_F32 ? ATSI_INPUT_BF16_TWICE : ATSI_INPUT_BF16;
}

// An odd number of cache lines: rows do not fall into the same cache sets.
static size_t odd_lines(size_t bytes) { return ((bytes + 63) / 64 | 1) * 64; }

size_t atsi_act_row_bytes(uint32_t n_cols) { return odd_lines((size_t)n_cols / 32 * sizeof(struct atsi_act_block)); }

size_t atsi_input_row_bytes(enum atsi_input_kind kind, uint32_t n_cols) {
    size_t part = ((size_t)n_cols + 31) / 32 * 64;
    switch (kind) {
    case ATSI_INPUT_INT8: return atsi_act_row_bytes(n_cols);
    case ATSI_INPUT_BF16: return odd_lines(part);
    case ATSI_INPUT_BF16_TWICE: return odd_lines(2 * part);
    default: return 0;
    }
}

size_t atsi_input_part_bytes(enum atsi_input_kind kind, uint32_t n_cols) {
    return kind == ATSI_INPUT_F32 ? n_cols * sizeof(float) : atsi_act_row_bytes(n_cols);
}

void atsi_prepare_input(const struct atsi_matmul_kernels *k, enum atsi_input_kind kind, const float *in,
                        uint32_t n_cols, void *out) {
    if (kind == ATSI_INPUT_INT8)
        k->quantise(in, n_cols, out);
    else
        k->cut(in, n_cols, kind == ATSI_INPUT_BF16 ? 1 : 2, out);
}

void atsi_matmul_kernels_init(struct atsi_matmul_kernels *out, enum atsi_isa isa) {
    atsi_matmul_kernels_init_ahead(out, isa, atsi_cpu_wants_prefetch());
}

void atsi_matmul_kernels_init_ahead(struct atsi_matmul_kernels *out, enum atsi_isa isa, bool read_ahead) {
    memset(out, 0, sizeof *out);
    out->isa = isa;
    out->read_ahead = read_ahead;
    atsi_matmul_fill_ref(out);
#if defined(__x86_64__)
    if (isa >= ATSI_ISA_AVX2) atsi_matmul_fill_avx2(out);
    if (isa == ATSI_ISA_AVXVNNI) atsi_matmul_fill_avxvnni(out);
    if (isa == ATSI_ISA_AVX512) atsi_matmul_fill_avx512(out);
    if (isa == ATSI_ISA_AVX512 && atsi_cpu_has_vbmi()) atsi_matmul_fill_avx512vbmi(out);
    if (isa == ATSI_ISA_AVX512 && atsi_cpu_has_amx()) atsi_matmul_fill_avx512amx(out);
#endif
}

void atsi_quantise_rows(const struct atsi_matmul_kernels *k, const float *in, size_t in_stride, uint32_t n_rows,
                        uint32_t n_cols, void *out, int i_thread, int n_threads) {
    size_t row_bytes = atsi_act_row_bytes(n_cols);
    // Pieces of a row, so that a single token is shared out too; 16 blocks are 11 cache lines.
    const uint32_t piece_cols = 16 * 32;
    uint32_t n_pieces = (n_cols + piece_cols - 1) / piece_cols;
    uint64_t n_all = (uint64_t)n_rows * n_pieces;
    uint64_t end = n_all * (uint64_t)(i_thread + 1) / (uint64_t)n_threads;
    for (uint64_t i = n_all * (uint64_t)i_thread / (uint64_t)n_threads; i < end; i++) {
        uint64_t row = i / n_pieces;
        uint32_t col = (uint32_t)(i % n_pieces) * piece_cols;
        uint32_t n = n_cols - col < piece_cols ? n_cols - col : piece_cols;
        struct atsi_act_block *blocks = (struct atsi_act_block *)((uint8_t *)out + row * row_bytes);
        k->quantise(in + row * in_stride + col, n, blocks + col / 32);
    }
}

uint32_t atsi_matmul_tiles(uint32_t n_rows) { return n_rows / ATSI_TILE_ROWS + (n_rows % ATSI_TILE_ROWS != 0); }

// How a matmul is cut: runs of `tiles` tiles, each for groups of `tokens` tokens, the last group for the rest.
struct cut {
    uint32_t tiles, n_runs;
    uint32_t tokens, n_groups;
};

// A group too short for the kernels of many tokens goes with the one before.
static uint32_t groups_of(uint32_t n_tokens, uint32_t group) {
    uint32_t short_tokens = ATSI_MANY_TOKENS - 1;
    return n_tokens < 2 * group ? 1 : (n_tokens - short_tokens + group - 1) / group;
}

static bool takes_many(const struct atsi_matmul_kernels *k, const struct atsi_matmul_args *a) {
    return k->many[a->dtype] != NULL && a->pairs == NULL && a->n_tokens >= ATSI_MANY_TOKENS;
}

// Two tiles are a block of what is quantised behind them: experts' runs are of whole ones, and one token's where they are longer than a tile.
static uint64_t whole_blocks(uint64_t tiles, bool is_experts, bool one_token) {
    if (tiles < 2) return is_experts ? 2 : tiles;
    return is_experts || one_token ? tiles - tiles % 2 : tiles;
}

// n_experts: matrices of this shape that are worked on together, 0 for a matmul without experts. Its many tokens are cut too (not
// those of experts, even of one: their numbers differ from a's, and every expert has as many chunks): runs can then be so long
// that a group's inputs serve many tiles while they are in L2.
static struct cut cut_of(const struct atsi_matmul_kernels *k, const struct atsi_matmul_args *a, uint32_t n_experts,
                         int n_threads) {
    uint64_t tile_bytes = ATSI_TILE_ROWS * atsi_dtype_row_bytes(a->dtype, a->n_cols);
    uint64_t n_tiles = atsi_matmul_tiles(a->n_rows), least = CHUNK_BYTES_MIN / tile_bytes,
             most = CHUNK_BYTES_MAX / tile_bytes;
    bool many = n_experts == 0 && takes_many(k, a);
    uint32_t group = many ? k->many_group : ATSI_TOKEN_GROUP;
    struct cut cut = {.tokens = a->n_tokens, .n_groups = n_experts == 0 ? groups_of(a->n_tokens, group) : 1};
    if (cut.n_groups > 1) cut.tokens = group;
    uint64_t per_thread = CHUNKS_PER_THREAD * (cut.n_groups > 1 ? 2 : 1);
    uint64_t n = n_tiles * (n_experts > 0 ? n_experts : 1) * cut.n_groups / ((uint64_t)n_threads * per_thread);
    if (n > most) n = most;
    if (n < least) n = least;
    n = whole_blocks(n, n_experts > 0, a->n_tokens == 1);
    if (many) n += n % 2; // they take tiles by twos
    if (n > n_tiles) n = n_tiles;
    cut.tiles = n > 0 ? (uint32_t)n : 1;
    uint32_t n_runs = (uint32_t)((n_tiles + cut.tiles - 1) / cut.tiles);
    cut.n_runs = n_runs > 0 ? n_runs : 1; // a matrix has at least one row
    return cut;
}

static uint32_t n_chunks(const struct atsi_matmul_kernels *k, const struct atsi_matmul_args *a, uint32_t n_experts,
                         int n_threads) {
    struct cut cut = cut_of(k, a, n_experts, n_threads);
    return cut.n_runs * cut.n_groups;
}

// The groups of a run follow each other, so that threads meet in the same weights; for the kernels of many tokens the runs of a group, so
// that its inputs stay in every core's L2.
static void run_chunk(const struct atsi_matmul_kernels *k, const struct atsi_matmul_args *a, uint32_t n_experts,
                      int n_threads, uint32_t i_chunk) {
    struct cut cut = cut_of(k, a, n_experts, n_threads);
    bool many = takes_many(k, a);
    uint32_t i_run = many ? i_chunk % cut.n_runs : i_chunk / cut.n_groups;
    uint32_t i_group = many ? i_chunk / cut.n_runs : i_chunk % cut.n_groups, first = i_group * cut.tokens;
    uint32_t n_tiles = atsi_matmul_tiles(a->n_rows), begin = i_run * cut.tiles;
    uint32_t end = n_tiles - begin < cut.tiles ? n_tiles : begin + cut.tiles;
    struct atsi_matmul_args part = *a;
    part.n_tokens = i_group + 1 == cut.n_groups ? a->n_tokens - first : cut.tokens;
    if (a->pairs != NULL) {
        part.pairs += first;
    } else {
        part.in = (const uint8_t *)a->in + first * a->in_stride;
        part.out += first * a->out_stride;
    }
    (many ? k->many : k->matmul)[a->dtype](&part, begin, end);
}

uint32_t atsi_matmul_n_chunks(const struct atsi_matmul_kernels *k, const struct atsi_matmul_args *args, int n_threads) {
    return n_chunks(k, args, 0, n_threads);
}

void atsi_matmul_chunk(const struct atsi_matmul_kernels *k, const struct atsi_matmul_args *args, int n_threads,
                       uint32_t i_chunk) {
    run_chunk(k, args, 0, n_threads, i_chunk);
}

uint32_t atsi_matmul_chunk_tiles(const struct atsi_matmul_kernels *k, const struct atsi_matmul_args *args,
                                 int n_threads) {
    return cut_of(k, args, 0, n_threads).tiles;
}

size_t atsi_expert_groups_words(uint32_t n_experts, uint32_t n_pairs_max) {
    return 2 * (size_t)n_experts + 1 + n_pairs_max;
}

// Insertion sort: few experts are active, and those of a long prefill come nearly even.
static void sort_by_pairs(struct atsi_expert_groups *g) {
    for (uint32_t i = 1; i < g->n_active; i++) {
        uint32_t e = g->active[i], n = g->first[e + 1] - g->first[e], j = i;
        for (; j > 0 && g->first[g->active[j - 1] + 1] - g->first[g->active[j - 1]] < n; j--)
            g->active[j] = g->active[j - 1];
        g->active[j] = e;
    }
}

uint32_t atsi_first_slot(const struct atsi_slots_left_out *left_out, const int32_t *ids, uint32_t n_slots) {
    if (left_out == NULL || left_out->n == NULL) return 0;
    uint32_t n_resident = 0;
    for (uint32_t s = 0; s < n_slots && left_out->resident_slots != NULL; s++)
        n_resident += ids[s] >= 0 && left_out->resident_slots[ids[s]] >= 0;
    return left_out->n[n_resident];
}

void atsi_expert_groups_build(struct atsi_expert_groups *groups, uint32_t *words, uint32_t n_experts,
                              const int32_t *ids, size_t id_stride, uint32_t n_tokens, uint32_t n_slots,
                              const struct atsi_slots_left_out *left_out) {
    struct atsi_expert_groups g = {.n_experts = n_experts, .first = words, .active = words + n_experts + 1};
    g.pairs = g.active + n_experts;
    memset(g.first, 0, ((size_t)n_experts + 1) * sizeof *g.first);
    // Counts one place up; their running sum makes first[e] the start of e, which the second pass advances to its end.
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t s = atsi_first_slot(left_out, ids + t * id_stride, n_slots); s < n_slots; s++)
            if (ids[t * id_stride + s] >= 0) g.first[ids[t * id_stride + s] + 1]++;
    for (uint32_t e = 0; e < n_experts; e++) {
        if (g.first[e + 1] > 0) g.active[g.n_active++] = e;
        g.first[e + 1] += g.first[e];
    }
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t s = atsi_first_slot(left_out, ids + t * id_stride, n_slots); s < n_slots; s++)
            if (ids[t * id_stride + s] >= 0) g.pairs[g.first[ids[t * id_stride + s]]++] = t * n_slots + s;
    memmove(g.first + 1, g.first, n_experts * sizeof *g.first);
    g.first[0] = 0;
    sort_by_pairs(&g);
    *groups = g;
}

uint32_t atsi_experts_n_chunks(const struct atsi_matmul_kernels *k, const struct atsi_experts_args *args,
                               int n_threads) {
    uint32_t n_active = args->groups->n_active;
    return n_active == 0 ? 0 : n_active * n_chunks(k, &args->matmul, n_active, n_threads);
}

static const void *weight_of_expert(const struct atsi_experts_args *args, uint32_t expert) {
    const struct atsi_expert_groups *g = args->groups;
    int32_t slot = args->resident_slots != NULL ? args->resident_slots[expert] : -1;
    if (slot >= 0) return (const uint8_t *)args->resident + (size_t)slot * args->expert_bytes;
    if (args->fetched != NULL) return (const uint8_t *)args->fetched + g->pairs[g->first[expert]] * args->expert_bytes;
    return (const uint8_t *)args->matmul.weight + expert * args->expert_bytes;
}

struct atsi_matmul_args atsi_expert_product(const struct atsi_experts_args *args, uint32_t i_active) {
    const struct atsi_expert_groups *g = args->groups;
    uint32_t e = g->active[i_active];
    struct atsi_matmul_args a = args->matmul;
    a.weight = weight_of_expert(args, e);
    if (a.bias != NULL) a.bias += (size_t)e * a.n_rows;
    a.pairs = g->pairs + g->first[e];
    a.n_tokens = g->first[e + 1] - g->first[e];
    return a;
}

void atsi_experts_chunk(const struct atsi_matmul_kernels *k, const struct atsi_experts_args *args, int n_threads,
                        uint32_t i_chunk) {
    uint32_t n_active = args->groups->n_active, per_expert = n_chunks(k, &args->matmul, n_active, n_threads);
    struct atsi_matmul_args a = atsi_expert_product(args, i_chunk / per_expert);
    run_chunk(k, &a, n_active, n_threads, i_chunk % per_expert);
}

uint32_t atsi_experts_chunk_tiles(const struct atsi_matmul_kernels *k, const struct atsi_experts_args *args,
                                  int n_threads) {
    return cut_of(k, &args->matmul, args->groups->n_active, n_threads).tiles;
}
