// Attention: stores the round's keys and values, then attends in tiles of (key/value head, tokens).
//
// A query's softmax is always taken in ranges of ATSI_ATTN_RANGE positions that start at its multiples, each online by blocks
// (vec.h), and the ranges are folded together in order. With many tiles one thread does all ranges of a tile; with few
// (decode) the ranges are items of their own and a last step folds them. Both give the same bits.
#include <math.h>

#include "kernels/cpu/ops_internal.h"

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// ---- shape of the work ------------------------------------------------------------------------------------------------

// How an attention call is cut into tiles.
struct cut {
    uint32_t n_tokens, n_kv_heads, group; // group: queries that share a key/value head
    uint32_t heads_per_tile, head_tiles;  // tiles of one group
    uint32_t tokens_per_tile, token_tiles;
    uint32_t first_range, n_ranges; // ranges that some token of the round sees
    bool split;                     // ranges are items
};

static uint32_t first_seen(const struct atsi_state *state, uint32_t position) {
    return state->window != 0 && position >= state->window ? position - state->window + 1 : 0;
}

static struct cut cut_call(const struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    const struct atsi_attention_params *p = &call->op->u.attention;
    const struct atsi_round *round = call->round.round;
    struct cut cut = {
        .n_tokens = (uint32_t)round->n_tokens, .n_kv_heads = p->n_kv_heads, .group = p->n_heads / p->n_kv_heads};
    cut.head_tiles = ceil_div(cut.group, ATSI_ATTN_QUERIES);
    cut.heads_per_tile = ceil_div(cut.group, cut.head_tiles);
    // About four tiles a thread, so that threads that start late or run slowly take fewer.
    uint32_t wanted = 4 * (uint32_t)cpu->n_run_threads, most_tokens = ATSI_ATTN_QUERIES / cut.heads_per_tile;
    uint32_t tokens = cut.n_tokens * cut.n_kv_heads * cut.head_tiles / wanted;
    cut.tokens_per_tile = tokens < 1 ? 1 : min_u32(tokens, most_tokens);
    cut.token_tiles = ceil_div(cut.n_tokens, cut.tokens_per_tile);
    uint32_t last = (uint32_t)round->first_pos + cut.n_tokens - 1;
    cut.first_range = first_seen(call->state.info, (uint32_t)round->first_pos) / ATSI_ATTN_RANGE;
    cut.n_ranges = last / ATSI_ATTN_RANGE - cut.first_range + 1;
    cut.split = cut.n_ranges > 1 && cut.n_tokens <= ATSI_ATTN_SPLIT_TOKENS &&
                cut.n_kv_heads * cut.head_tiles * cut.token_tiles < wanted;
    return cut;
}

// Ranges that a window can meet, or a whole context.
static uint32_t ranges_max(const struct atsi_state *state, uint32_t n_ctx, uint32_t n_tokens) {
    uint32_t n_positions = state->window == 0 ? n_ctx : min_u32(n_ctx, state->window + n_tokens);
    return n_positions / ATSI_ATTN_RANGE + 2;
}

// A partial result: acc [pad(v_dim)], then max and sum in a padded line of their own.
static uint32_t partial_floats(const struct atsi_state *state) { return atsi_vec_pad(state->v_dim) + 16; }

static float *partial(const struct atsi_cpu *cpu, const struct atsi_op_call *call, const struct cut *cut,
                      uint32_t token, uint32_t head, uint32_t range) {
    size_t index = ((size_t)token * call->op->u.attention.n_heads + head) * cut->n_ranges + range;
    return cpu->attn_partials + index * partial_floats(call->state.info);
}

uint64_t atsi_attention_partial_bytes(const struct atsi_attention_params *p, const struct atsi_state *state,
                                      uint32_t n_ctx, uint32_t n_tokens_max) {
    uint32_t n_tokens = min_u32(n_tokens_max, ATSI_ATTN_SPLIT_TOKENS);
    return (uint64_t)n_tokens * p->n_heads * ranges_max(state, n_ctx, n_tokens) * partial_floats(state) * sizeof(float);
}

// ---- scratch of a thread ------------------------------------------------------------------------------------------------

struct scratch {
    float *q, *rows, *scores, *acc, *total_acc, *max, *sum, *total_max, *total_sum;
    size_t n_floats;
};

static struct scratch lay_out_scratch(float *memory, const struct atsi_state *state) {
    struct scratch s = {.n_floats = 0};
    uint32_t k_pad = atsi_vec_pad(state->k_dim), v_pad = atsi_vec_pad(state->v_dim);
    struct {
        float **at;
        size_t n;
    } parts[] = {
        {&s.q, (size_t)ATSI_ATTN_QUERIES * k_pad},
        {&s.rows, (size_t)ATSI_ATTN_BLOCK * (k_pad > v_pad ? k_pad : v_pad)},
        {&s.scores, (size_t)ATSI_ATTN_QUERIES * ATSI_ATTN_BLOCK},
        {&s.acc, (size_t)ATSI_ATTN_QUERIES * v_pad},
        {&s.total_acc, (size_t)ATSI_ATTN_QUERIES * v_pad},
        {&s.max, ATSI_ATTN_QUERIES},
        {&s.sum, ATSI_ATTN_QUERIES},
        {&s.total_max, ATSI_ATTN_QUERIES},
        {&s.total_sum, ATSI_ATTN_QUERIES},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].at = memory != NULL ? memory + s.n_floats : NULL;
        s.n_floats += parts[i].n;
    }
    return s;
}

uint64_t atsi_attention_thread_bytes(const struct atsi_state *state) {
    return lay_out_scratch(NULL, state).n_floats * sizeof(float);
}

static struct scratch thread_scratch(const struct atsi_cpu *cpu, const struct atsi_op_call *call, int i_thread) {
    return lay_out_scratch((float *)(void *)(cpu->thread_scratch + (size_t)i_thread * cpu->thread_scratch_bytes),
                           call->state.info);
}

// ---- storing ----------------------------------------------------------------------------------------------------------

static void run_store(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    const struct atsi_state_ref *state = &call->state;
    uint32_t n_heads = state->info->n_heads, k_dim = state->info->k_dim, v_dim = state->info->v_dim;
    uint32_t slot = ((uint32_t)call->round.round->first_pos + row) % state->capacity;
    size_t k_bytes = (size_t)atsi_dtype_row_bytes(state->kv_type, k_dim),
           v_bytes = (size_t)atsi_dtype_row_bytes(state->kv_type, v_dim);
    uint8_t *k_out = (uint8_t *)state->k + (size_t)slot * n_heads * k_bytes;
    uint8_t *v_out = (uint8_t *)state->v + (size_t)slot * n_heads * v_bytes;
    const float *k = atsi_row(&call->in[1], row), *v = atsi_row(&call->in[2], row);
    for (uint32_t h = 0; h < n_heads; h++) {
        cpu->vec->kv_store(state->kv_type, k + (size_t)h * k_dim, k_dim, k_out + h * k_bytes);
        cpu->vec->kv_store(state->kv_type, v + (size_t)h * v_dim, v_dim, v_out + h * v_bytes);
    }
}

// ---- attending --------------------------------------------------------------------------------------------------------

// Queries of a tile, token after token, heads within.
struct tile_place {
    uint32_t kv_head, first_head, n_heads, first_token, n_tokens;
};

static struct tile_place place_tile(const struct cut *cut, uint32_t i_tile) {
    struct tile_place place;
    uint32_t head_tile = i_tile % cut->head_tiles;
    i_tile /= cut->head_tiles;
    place.kv_head = i_tile % cut->n_kv_heads;
    i_tile /= cut->n_kv_heads;
    place.first_head = place.kv_head * cut->group + head_tile * cut->heads_per_tile;
    place.n_heads = min_u32(cut->heads_per_tile, cut->group - head_tile * cut->heads_per_tile);
    place.first_token = (cut->token_tiles - 1 - i_tile) * cut->tokens_per_tile; // the last see most: they go first
    place.n_tokens = min_u32(cut->tokens_per_tile, cut->n_tokens - place.first_token);
    return place;
}

static struct atsi_attn_tile make_tile(const struct atsi_op_call *call, const struct tile_place *place,
                                       const struct scratch *scratch) {
    const struct atsi_state *state = call->state.info;
    uint32_t k_dim = state->k_dim, k_pad = atsi_vec_pad(k_dim);
    size_t k_bytes = (size_t)atsi_dtype_row_bytes(call->state.kv_type, k_dim);
    size_t v_bytes = (size_t)atsi_dtype_row_bytes(call->state.kv_type, state->v_dim);
    struct atsi_attn_tile tile = {
        .n_queries = place->n_tokens * place->n_heads,
        .q = scratch->q,
        .scale = call->op->u.attention.scale,
        .k = (const uint8_t *)call->state.k + place->kv_head * k_bytes,
        .v = (const uint8_t *)call->state.v + place->kv_head * v_bytes,
        .k_slot_bytes = state->n_heads * k_bytes,
        .v_slot_bytes = state->n_heads * v_bytes,
        .capacity = call->state.capacity,
        .kv_type = call->state.kv_type,
        .k_dim = k_dim,
        .v_dim = state->v_dim,
        .rows = scratch->rows,
        .scores = scratch->scores,
        .max = scratch->max,
        .sum = scratch->sum,
        .acc = scratch->acc,
    };
    for (uint32_t i = 0; i < tile.n_queries; i++) {
        uint32_t token = place->first_token + i / place->n_heads, head = place->first_head + i % place->n_heads;
        uint32_t position = (uint32_t)call->round.round->first_pos + token;
        const float *q = atsi_row(&call->in[0], token) + (size_t)head * k_dim;
        for (uint32_t j = 0; j < k_pad; j++) scratch->q[(size_t)i * k_pad + j] = j < k_dim ? q[j] : 0.0f;
        tile.first[i] = first_seen(state, position);
        tile.end[i] = position + 1;
    }
    return tile;
}

static void finish_query(const struct atsi_cpu *cpu, const struct atsi_op_call *call, uint32_t token, uint32_t head,
                         float max, float sum, const float *acc) {
    uint32_t v_dim = call->state.info->v_dim;
    const float *sinks = call->tensor[0].data;
    cpu->vec->attention_finish(max, sum, acc, sinks != NULL ? sinks + head : NULL, v_dim,
                               atsi_row(&call->out[0], token) + (size_t)head * v_dim);
}

static void start_total(float *max, float *sum, float *acc, uint32_t v_pad) {
    *max = -INFINITY;
    *sum = 0.0f;
    for (uint32_t i = 0; i < v_pad; i++) acc[i] = 0.0f;
}

static void run_whole_tile(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t i_tile, int i_thread) {
    const struct atsi_op_call *call = step->call;
    struct cut cut = cut_call(cpu, call);
    struct tile_place place = place_tile(&cut, i_tile);
    struct scratch s = thread_scratch(cpu, call, i_thread);
    struct atsi_attn_tile tile = make_tile(call, &place, &s);
    uint32_t v_pad = atsi_vec_pad(tile.v_dim), last = tile.n_queries - 1;
    for (uint32_t i = 0; i <= last; i++)
        start_total(&s.total_max[i], &s.total_sum[i], s.total_acc + (size_t)i * v_pad, v_pad);
    for (uint32_t range = tile.first[0] / ATSI_ATTN_RANGE; range * ATSI_ATTN_RANGE < tile.end[last]; range++) {
        cpu->vec->attention_range(&tile, range * ATSI_ATTN_RANGE, (range + 1) * ATSI_ATTN_RANGE);
        for (uint32_t i = 0; i <= last; i++)
            cpu->vec->attention_fold(&s.total_max[i], &s.total_sum[i], s.total_acc + (size_t)i * v_pad, s.max[i],
                                     s.sum[i], s.acc + (size_t)i * v_pad, v_pad);
    }
    for (uint32_t i = 0; i <= last; i++)
        finish_query(cpu, call, place.first_token + i / place.n_heads, place.first_head + i % place.n_heads,
                     s.total_max[i], s.total_sum[i], s.total_acc + (size_t)i * v_pad);
}

static void run_tile_range(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t item, int i_thread) {
    const struct atsi_op_call *call = step->call;
    struct cut cut = cut_call(cpu, call);
    struct tile_place place = place_tile(&cut, item / cut.n_ranges);
    struct scratch s = thread_scratch(cpu, call, i_thread);
    struct atsi_attn_tile tile = make_tile(call, &place, &s);
    uint32_t range = item % cut.n_ranges, begin = (cut.first_range + range) * ATSI_ATTN_RANGE,
             v_pad = atsi_vec_pad(tile.v_dim);
    cpu->vec->attention_range(&tile, begin, begin + ATSI_ATTN_RANGE);
    for (uint32_t i = 0; i < tile.n_queries; i++) {
        float *out = partial(cpu, call, &cut, place.first_token + i / place.n_heads,
                             place.first_head + i % place.n_heads, range);
        for (uint32_t j = 0; j < v_pad; j++) out[j] = s.acc[(size_t)i * v_pad + j];
        out[v_pad] = s.max[i];
        out[v_pad + 1] = s.sum[i];
    }
}

// Item: a head of a token.
static void run_fold(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t item, int i_thread) {
    const struct atsi_op_call *call = step->call;
    uint32_t n_heads = call->op->u.attention.n_heads, token = item / n_heads, head = item % n_heads;
    struct cut cut = cut_call(cpu, call);
    struct scratch s = thread_scratch(cpu, call, i_thread);
    uint32_t v_pad = atsi_vec_pad(call->state.info->v_dim);
    start_total(s.total_max, s.total_sum, s.total_acc, v_pad);
    for (uint32_t range = 0; range < cut.n_ranges; range++) {
        const float *part = partial(cpu, call, &cut, token, head, range);
        cpu->vec->attention_fold(s.total_max, s.total_sum, s.total_acc, part[v_pad], part[v_pad + 1], part, v_pad);
    }
    finish_query(cpu, call, token, head, *s.total_max, *s.total_sum, s.total_acc);
}

// ---- steps ------------------------------------------------------------------------------------------------------------

static struct atsi_span cache_span(const struct atsi_op_call *call, bool values, bool write) {
    const struct atsi_state *state = call->state.info;
    uint64_t row_bytes = atsi_dtype_row_bytes(call->state.kv_type, values ? state->v_dim : state->k_dim);
    return atsi_span_bytes(values ? call->state.v : call->state.k, row_bytes * state->n_heads * call->state.capacity,
                           write);
}

void atsi_steps_of_attention(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    struct cut cut = cut_call(cpu, call);
    uint32_t n_tokens = cut.n_tokens, n_heads = call->op->u.attention.n_heads;
    struct atsi_span q = atsi_span_rows(&call->in[0], n_tokens, false),
                     out = atsi_span_rows(&call->out[0], n_tokens, true);
    struct atsi_span store_spans[4] = {atsi_span_rows(&call->in[1], n_tokens, false),
                                       atsi_span_rows(&call->in[2], n_tokens, false), cache_span(call, false, true),
                                       cache_span(call, true, true)};
    struct atsi_step store = {.run = run_store, .call = call, .n_items = n_tokens, .by_row = true};
    atsi_cpu_add_step(cpu, &store, store_spans, 4);

    uint32_t n_tiles = cut.n_kv_heads * cut.head_tiles * cut.token_tiles;
    struct atsi_span k = cache_span(call, false, false), v = cache_span(call, true, false);
    if (!cut.split) {
        struct atsi_span spans[4] = {q, k, v, out};
        struct atsi_step whole = {.run = run_whole_tile, .call = call, .n_items = n_tiles};
        atsi_cpu_add_step(cpu, &whole, spans, 4);
        return;
    }
    struct atsi_span partials = atsi_span_bytes(cpu->attn_partials, sizeof(float), true); // stands for all of them
    struct atsi_span range_spans[4] = {q, k, v, partials};
    struct atsi_step ranges = {.run = run_tile_range, .call = call, .n_items = n_tiles * cut.n_ranges};
    atsi_cpu_add_step(cpu, &ranges, range_spans, 4);
    partials.write = false;
    struct atsi_span fold_spans[2] = {partials, out};
    struct atsi_step fold = {.run = run_fold, .call = call, .n_items = n_tokens * n_heads};
    atsi_cpu_add_step(cpu, &fold, fold_spans, 2);
}
