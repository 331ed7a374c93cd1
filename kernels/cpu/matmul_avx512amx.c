// Many tokens with AMX: a register of 16 x 64 bytes times another, 16 rows of int32 sums in 16 cycles.
//
// A tile's words are what AMX wants of its second factor: word k holds weights 4k .. 4k + 3 of 16 rows. The first factor is the
// quantised inputs of 16 tokens as they lie. One product takes the 32 (or 16) columns that share a scale, so a third of the
// instructions of VNNI are left: those that turn sums to floats and scale them. Panels of 8 sub-blocks are opened once for 64 tokens,
// and the inputs of a panel, 22 KB, serve AMX_TILES tiles while they are in L1.
#include <string.h>

#include "kernels/cpu/simd_avx512.h"
// The bodies are written in the words of the header above.
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/matmul_store.h"
#include "kernels/cpu/matmul_types.h"

enum {
    AMX_TOKENS = 16,
    AMX_GROUPS = 4, // of 16 tokens that a panel is opened for
    AMX_TILES = 4,
    PANEL_SUBS = 8
};
_Static_assert((int)ATSI_MANY_TOKENS >= (int)AMX_TOKENS, "no group is short");

// A sub-block of 32 columns and 16 rows.
struct opened_sub {
    uint8_t words[8][64]; // [words][16 rows x 4 columns]
    float scale[2][16];   // [groups of columns][rows]
    float min[16];
    int32_t min_pair[16];
};
struct panel {
    struct opened_sub subs[PANEL_SUBS] __attribute__((aligned(64)));
};
// The sums of products of a sub-block with 16 tokens, for each group of columns with a scale of its own.
struct dots {
    int32_t of_group[2][AMX_TOKENS][ATSI_TILE_ROWS] __attribute__((aligned(64)));
};
// The part of an input block that is no factor.
struct act_head {
    float d, d_sum;
    int16_t sum[2];
    uint32_t unused;
};

struct amx_type {
    uint32_t sub_bytes; // of a tile
    uint32_t group;     // columns that share a scale: 32 or 16
    void (*open)(const uint8_t *block, int n_subs, struct panel *panel);
    void (*multiply)(const struct panel *panel, int n_subs, const struct atsi_act_block *in, size_t in_stride,
                     const struct act_head (*heads)[AMX_TOKENS], float *sums);
};

// ---- tiles of the processor ---------------------------------------------------------------------------------------------

// The compiler does not know what the instructions that load tiles read: all that is at `p` is in memory from here on.
static void write_out(const void *p) { __asm__ volatile("" ::"r"(p) : "memory"); }

// Registers: 0 and 1 sums, 2 and 3 inputs, 4 and 5 weights.
static void configure(uint32_t group) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t n_rows[16];
    } __attribute__((aligned(64))) config = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        config.row_bytes[i] = i == 2 || i == 3 ? (uint16_t)group : 64;
        config.n_rows[i] = i < 4 ? AMX_TOKENS : (uint8_t)(group / 4);
    }
    write_out(&config);
    _tile_loadconfig(&config);
}

static void dots_of_32(const struct opened_sub *sub, const struct atsi_act_block *in, size_t in_stride,
                       struct dots *out) {
    write_out(sub);
    _tile_zero(0);
    _tile_loadd(2, in->q, in_stride);
    _tile_loadd(4, sub->words, 64);
    _tile_dpbsud(0, 2, 4);
    _tile_stored(0, out->of_group[0], 64);
}

static void dots_of_16(const struct opened_sub *sub, const struct atsi_act_block *in, size_t in_stride,
                       struct dots *out) {
    write_out(sub);
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(2, in->q, in_stride);
    _tile_loadd(4, sub->words, 64);
    _tile_loadd(3, in->q + 16, in_stride);
    _tile_loadd(5, sub->words[4], 64);
    _tile_dpbsud(0, 2, 4);
    _tile_dpbsud(1, 3, 5);
    _tile_stored(0, out->of_group[0], 64);
    _tile_stored(1, out->of_group[1], 64);
}

// ---- loops --------------------------------------------------------------------------------------------------------------

// A block of at most 64 tokens as groups of 16. The last group may reach back over tokens of the one before, so that none is short;
// they are computed twice and stored once.
struct token_block {
    uint32_t begin, end;
    uint32_t n_groups, first[AMX_GROUPS];
};

static struct token_block token_block(uint32_t begin, uint32_t n_tokens) {
    uint32_t n = n_tokens - begin < AMX_GROUPS * AMX_TOKENS ? n_tokens - begin : AMX_GROUPS * AMX_TOKENS;
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
        for (int s = 0; s < n_subs; s++)
            heads[s][t] = (struct act_head){in[s].d, in[s].d_sum, {in[s].sum[0], in[s].sum[1]}, 0};
    }
}

static void multiply_tiles(const struct amx_type *type, const struct atsi_matmul_args *a, uint32_t tile_begin,
                           uint32_t n_tiles, const struct token_block *tokens) {
    float sums[AMX_TILES][AMX_GROUPS][AMX_TOKENS * ATSI_TILE_ROWS] __attribute__((aligned(64)));
    uint32_t n_subs = a->n_cols / 32;
    size_t tile_bytes = (size_t)n_subs * type->sub_bytes;
    const uint8_t *tiles = (const uint8_t *)a->weight + tile_begin * tile_bytes;
    memset(sums, 0, sizeof sums);
    for (uint32_t i = 0; i < n_subs; i += PANEL_SUBS) {
        int n = n_subs - i < PANEL_SUBS ? (int)(n_subs - i) : PANEL_SUBS;
        struct act_head heads[AMX_GROUPS][PANEL_SUBS][AMX_TOKENS];
        for (uint32_t g = 0; g < tokens->n_groups; g++) gather_heads(a, tokens->first[g], i, n, heads[g]);
        for (uint32_t tile = 0; tile < n_tiles; tile++) {
            struct panel panel;
            type->open(tiles + tile * tile_bytes + (size_t)i * type->sub_bytes, n, &panel);
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
