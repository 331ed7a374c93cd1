// Many tokens with AMX: a register of 16 x 64 bytes times another, 16 rows of int32 sums in 16 cycles.
//
// A tile's words are what AMX wants of its second factor: word k holds weights 4k .. 4k + 3 of 16 rows. The first factor is the
// quantised inputs of 16 tokens as they lie. One product takes the 32 (or 16) columns that share a scale, so of the instructions of VNNI
// those are left that turn sums to floats and scale them. Panels of 8 sub-blocks are opened once for 64 tokens (to signed weights: all
// types have such of 8 bits), and the inputs of a panel, 22 KB, serve AMX_TILES tiles while they are in L1.
#include <stddef.h>
#include <string.h>

#include "kernels/cpu/simd_avx512.h"
// The bodies are written in the words of the header above.
#include "kernels/cpu/amx.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/matmul_store.h"
#include "kernels/cpu/matmul_types.h"

enum {
    AMX_GROUPS = ATSI_TOKEN_GROUP / AMX_TOKENS, // that a panel is opened for
    AMX_TILES = 16,                             // that heads of inputs are gathered for
    PANEL_SUBS = 8,
    PRODUCTS = 4 // under way at once
};
_Static_assert((int)ATSI_MANY_TOKENS >= (int)AMX_TOKENS, "no group is short");

// A sub-block of 32 columns and 16 rows.
struct opened_sub {
    int8_t words[8][64]; // [words][16 rows x 4 columns], true weights
    float scale[2][16];  // [groups of columns][rows]
    float min[16];
    int32_t min_pair[16];
};
struct panel {
    struct opened_sub subs[PANEL_SUBS] __attribute__((aligned(64)));
};
// The sums of products of 16 tokens with the columns that share a scale: of four sub-blocks, or of two twice.
struct dots {
    int32_t of[PRODUCTS][AMX_TOKENS][ATSI_TILE_ROWS] __attribute__((aligned(64)));
};
// The beginning of an input block: what is no factor, rounded up to what one move copies.
struct act_head {
    float d, d_sum;
    int16_t sum[2];
    int8_t q[4];
};
_Static_assert(offsetof(struct act_head, q) == offsetof(struct atsi_act_block, q), "a block begins so");

struct amx_type {
    uint32_t sub_bytes; // of a tile
    uint32_t group;     // columns that share a scale: 32 or 16
    void (*open)(const uint8_t *block, int n_subs, struct panel *panel);
    void (*multiply)(const struct panel *panel, int n_subs, const struct atsi_act_block *in, size_t in_stride,
                     const struct act_head (*heads)[AMX_TOKENS], float *sums);
};

// ---- tiles of the processor ---------------------------------------------------------------------------------------------

// Registers: 0..3 sums, 4 and 5 inputs, 6 and 7 weights.
static void configure(uint32_t group) {
    struct amx_shapes shapes;
    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = i == 4 || i == 5 ? (uint16_t)group : 64;
        shapes.n_rows[i] = i < 6 ? AMX_TOKENS : (uint8_t)(group / 4);
    }
    amx_configure(&shapes);
}

// The factors of a product: inputs of 16 tokens, rows in_stride apart, and words of weights.
struct factors {
    const int8_t *in;
    const int8_t (*words)[64];
};

// A product takes 52 cycles and the next can begin after 16: each has registers of its own, so that none waits for the one before.
static void multiply_four(const struct factors *f, size_t in_stride, struct dots *out) {
    _tile_loadd(4, f[0].in, in_stride);
    _tile_loadd(6, f[0].words, 64);
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(5, f[1].in, in_stride);
    _tile_loadd(7, f[1].words, 64);
    _tile_zero(1);
    _tile_dpbssd(1, 5, 7);
    _tile_loadd(4, f[2].in, in_stride);
    _tile_loadd(6, f[2].words, 64);
    _tile_zero(2);
    _tile_dpbssd(2, 4, 6);
    _tile_loadd(5, f[3].in, in_stride);
    _tile_loadd(7, f[3].words, 64);
    _tile_zero(3);
    _tile_dpbssd(3, 5, 7);
    _tile_stored(0, out->of[0], 64);
    _tile_stored(1, out->of[1], 64);
    _tile_stored(2, out->of[2], 64);
    _tile_stored(3, out->of[3], 64);
}

// The products of as many sub-blocks as dots hold; beyond the last of n it is taken again.
INLINE void dots_of(int group, const struct opened_sub *subs, const struct atsi_act_block *in, int n, size_t in_stride,
                    struct dots *out) {
    struct factors f[PRODUCTS];
    int per_sub = 32 / group;
    for (int i = 0; i < PRODUCTS; i++) {
        int s = i / per_sub < n ? i / per_sub : n - 1, part = i % per_sub;
        f[i] = (struct factors){in[s].q + part * group, subs[s].words + part * (group / 4)};
    }
    multiply_four(f, in_stride, out);
}

// ---- loops --------------------------------------------------------------------------------------------------------------

// A block of at most 64 tokens as groups of 16. The last group may reach back over tokens of the one before, so that none is short;
// they are computed twice and stored once.
struct token_block {
    uint32_t begin, end;
    uint32_t n_groups, first[AMX_GROUPS];
};

static struct token_block token_block(uint32_t begin, uint32_t n_tokens) {
    uint32_t n = n_tokens - begin < ATSI_TOKEN_GROUP ? n_tokens - begin : ATSI_TOKEN_GROUP;
    struct token_block block = {begin, begin + n, (n + AMX_TOKENS - 1) / AMX_TOKENS, {0}};
    for (uint32_t g = 0; g < block.n_groups; g++) {
        uint32_t first = begin + g * AMX_TOKENS;
        block.first[g] = first + AMX_TOKENS <= block.end ? first : block.end - AMX_TOKENS;
    }
    return block;
}

static const struct atsi_act_block *input(const struct atsi_matmul_args *a, uint32_t token, uint32_t i_sub) {
    return (const struct atsi_act_block *)((const uint8_t *)a->in + token * a->in_stride) + i_sub;
}

static void gather_heads(const struct atsi_matmul_args *a, uint32_t first_token, uint32_t first_sub, int n_subs,
                         struct act_head (*heads)[AMX_TOKENS]) {
    for (uint32_t t = 0; t < AMX_TOKENS; t++) {
        const struct atsi_act_block *in = input(a, first_token + t, first_sub);
        for (int s = 0; s < n_subs; s++) memcpy(&heads[s][t], &in[s], sizeof heads[s][t]);
    }
}

static void multiply_tiles(const struct amx_type *type, const struct atsi_matmul_args *a, uint32_t tile_begin,
                           uint32_t n_tiles, const struct token_block *tokens) {
    float sums[AMX_TILES][AMX_GROUPS][AMX_TOKENS * ATSI_TILE_ROWS] __attribute__((aligned(64)));
    uint32_t n_subs = a->n_cols / 32;
    size_t tile_bytes = (size_t)n_subs * type->sub_bytes;
    const uint8_t *tiles = (const uint8_t *)a->weight + tile_begin * tile_bytes;
    memset(sums, 0, n_tiles * sizeof *sums);
    for (uint32_t i = 0; i < n_subs; i += PANEL_SUBS) {
        int n = n_subs - i < PANEL_SUBS ? (int)(n_subs - i) : PANEL_SUBS;
        struct act_head heads[AMX_GROUPS][PANEL_SUBS][AMX_TOKENS];
        for (uint32_t g = 0; g < tokens->n_groups; g++) gather_heads(a, tokens->first[g], i, n, heads[g]);
        for (uint32_t tile = 0; tile < n_tiles; tile++) {
            struct panel panel;
            type->open(tiles + tile * tile_bytes + (size_t)i * type->sub_bytes, n, &panel);
            amx_write_out(&panel);
            for (uint32_t g = 0; g < tokens->n_groups; g++)
                type->multiply(&panel, n, input(a, tokens->first[g], i), a->in_stride, heads[g], sums[tile][g]);
        }
    }
    for (uint32_t tile = 0; tile < n_tiles; tile++)
        for (uint32_t t = tokens->begin; t < tokens->end; t++) {
            uint32_t g = (t - tokens->begin) / AMX_TOKENS;
            store_tile(a, (tile_begin + tile) * ATSI_TILE_ROWS, sums[tile][g] + (t - tokens->first[g]) * ATSI_TILE_ROWS,
                       atsi_matmul_out_row(a, t));
        }
}

// Tokens in whole blocks but the last, which has at least 16: what is left of fewer goes into two blocks with the one before.
static void amx_matmul(const struct amx_type *type, const struct atsi_matmul_args *a, uint32_t tile_begin,
                       uint32_t tile_end) {
    configure(type->group);
    for (uint32_t t = 0; t < a->n_tokens;) {
        struct token_block tokens = token_block(t, a->n_tokens);
        uint32_t left = a->n_tokens - tokens.end;
        if (left > 0 && left < AMX_TOKENS) tokens = token_block(t, tokens.end - AMX_TOKENS);
        for (uint32_t i = tile_begin; i < tile_end; i += AMX_TILES)
            multiply_tiles(type, a, i, tile_end - i < AMX_TILES ? tile_end - i : AMX_TILES, &tokens);
        t = tokens.end;
    }
    _tile_release();
}

#define X_KERNEL "kernels/cpu/matmul_amx_kernel.h"
#include "kernels/cpu/matmul_type_list.h"

void atsi_matmul_fill_avx512amx(struct atsi_matmul_kernels *k) {
#define FILL(dtype, type) k->many[ATSI_##dtype] = type##_amx;
    TILE16_TYPES(FILL)
#undef FILL
}
