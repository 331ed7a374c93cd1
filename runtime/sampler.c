#include "runtime/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/cpu/vec.h"

struct candidate {
    float logit; // after the penalty
    int32_t id;
};

enum {
    BLOCK = 256 // logits looked at together
};

enum flag {
    BANNED = 1,
    PENALISED = 2 // only while a token is picked
};

struct atsi_sampler {
    struct atsi_sampler_params params;
    uint32_t n_vocab;
    uint8_t *flags;               // [n_vocab] of enum flag; 0 for almost every token
    struct candidate *candidates; // [n_vocab]
    const struct atsi_vec_kernels *vec;
    uint32_t n_blocks;
    struct candidate *blocks, *best_blocks; // [n_blocks] a block's largest logit and its number
    float *weights;                         // [n_vocab]
    int32_t recent[ATSI_PENALTY_WINDOW];    // ring of the last tokens
    uint32_t n_recent;                      // ever accepted
    uint64_t random[2];
};

struct atsi_sampler_params atsi_sampler_defaults(void) {
    return (struct atsi_sampler_params){
        .temp = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.0f};
}

// ---- random numbers: xoroshiro128+ seeded by splitmix64 (Blackman and Vigna, public domain algorithms) ------------------

static uint64_t splitmix64(uint64_t *x) {
    uint64_t z = (*x += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

static double next_uniform(struct atsi_sampler *s) { // [0, 1)
    uint64_t a = s->random[0], b = s->random[1], sum = a + b;
    b ^= a;
    s->random[0] = rotate(a, 24) ^ b ^ (b << 16);
    s->random[1] = rotate(b, 37);
    return (double)(sum >> 11) * 0x1p-53;
}

// ---- life ---------------------------------------------------------------------------------------------------------

enum atsi_status atsi_sampler_create(const struct atsi_sampler_params *params, uint32_t n_vocab, const int32_t *banned,
                                     uint32_t n_banned, struct atsi_sampler **out, struct atsi_error *err) {
    struct atsi_sampler *s = calloc(1, sizeof *s);
    *out = NULL;
    if (s) {
        s->params = *params;
        s->n_vocab = n_vocab;
        s->flags = calloc(n_vocab, sizeof *s->flags);
        s->candidates = calloc(n_vocab, sizeof *s->candidates);
        s->weights = calloc(n_vocab, sizeof *s->weights);
        s->vec = atsi_vec_kernels(atsi_isa_best());
        s->n_blocks = (n_vocab + BLOCK - 1) / BLOCK;
        s->blocks = calloc(s->n_blocks, sizeof *s->blocks);
        s->best_blocks = calloc(s->n_blocks, sizeof *s->best_blocks);
    }
    if (!s || !s->flags || !s->candidates || !s->weights || !s->blocks || !s->best_blocks) {
        atsi_sampler_free(s);
        return atsi_fail(err, ATSI_FAILED, "out of memory while creating the sampler");
    }
    for (uint32_t i = 0; i < n_banned; i++)
        if (banned[i] >= 0 && (uint32_t)banned[i] < n_vocab) s->flags[banned[i]] = BANNED;
    uint64_t x = params->seed;
    s->random[0] = splitmix64(&x);
    s->random[1] = splitmix64(&x);
    *out = s;
    return ATSI_OK;
}

void atsi_sampler_free(struct atsi_sampler *s) {
    if (!s) return;
    free(s->flags);
    free(s->candidates);
    free(s->weights);
    free(s->blocks);
    free(s->best_blocks);
    free(s);
}

void atsi_sampler_accept(struct atsi_sampler *s, int32_t id) { s->recent[s->n_recent++ % ATSI_PENALTY_WINDOW] = id; }

// ---- order --------------------------------------------------------------------------------------------------------

static bool ranks_before(const struct candidate *a, const struct candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static int compare(const void *a, const void *b) { return ranks_before(a, b) ? -1 : 1; }

static void sift_down(struct candidate *heap, uint32_t n, uint32_t i) { // the worst on top
    for (;;) {
        uint32_t worst = i, left = 2 * i + 1, right = left + 1;
        if (left < n && ranks_before(&heap[worst], &heap[left])) worst = left;
        if (right < n && ranks_before(&heap[worst], &heap[right])) worst = right;
        if (worst == i) return;
        struct candidate t = heap[i];
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

// ---- the best k of a vocabulary -----------------------------------------------------------------------------------
// Every token looks at every logit, so that pass is a vector kernel's, which finds the largest logit of each block. Then the k blocks
// whose largest logits are the largest are looked into, and of the others those that may still hold one of the k best.

// The best so far: in order of arrival until there are k, then a heap with the worst on top.
struct best {
    struct candidate *c;
    uint32_t n, k;
};

static void offer(struct best *b, struct candidate c) {
    if (b->n < b->k) {
        b->c[b->n++] = c;
        for (uint32_t i = b->n == b->k ? b->k / 2 : 0; i-- > 0;) sift_down(b->c, b->k, i);
    } else if (ranks_before(&c, &b->c[0])) {
        b->c[0] = c;
        sift_down(b->c, b->k, 0);
    }
}

// The largest logit of every block, and the number of the block. False when a logit is NaN or infinite upwards.
static bool find_largest(struct atsi_sampler *s, const float *logits) {
    bool sound = true;
    for (uint32_t i = 0; i < s->n_blocks; i++) {
        uint32_t first = i * BLOCK, n = s->n_vocab - first < BLOCK ? s->n_vocab - first : BLOCK;
        s->blocks[i] = (struct candidate){s->vec->largest(logits + first, n), (int32_t)i};
        sound = sound && !isnan(s->blocks[i].logit);
    }
    return sound;
}

static void offer_block(struct best *b, const struct atsi_sampler *s, const float *logits, int32_t block) {
    uint32_t first = (uint32_t)block * BLOCK, end = first + BLOCK < s->n_vocab ? first + BLOCK : s->n_vocab;
    for (uint32_t i = first; i < end; i++)
        if (!s->flags[i]) offer(b, (struct candidate){logits[i], (int32_t)i});
}

// A block's largest logit may be one that is left out, so it only says what the block cannot hold.
static void offer_blocks(struct best *b, struct atsi_sampler *s, const float *logits) {
    struct best blocks = {s->best_blocks, 0, b->k < s->n_blocks ? b->k : s->n_blocks};
    for (uint32_t i = 0; i < s->n_blocks; i++) offer(&blocks, s->blocks[i]);
    struct candidate worst = blocks.c[0];
    for (uint32_t i = 0; i < blocks.n; i++) offer_block(b, s, logits, blocks.c[i].id);
    for (uint32_t i = 0; blocks.n < s->n_blocks && i < s->n_blocks; i++)
        if (ranks_before(&worst, &s->blocks[i]) && (b->n < b->k || s->blocks[i].logit >= b->c[0].logit))
            offer_block(b, s, logits, s->blocks[i].id);
}

// Every recent token once: positive logits divided, negative multiplied. They are flagged before the pass over all tokens, which leaves them
// out, and offered after it.
static uint32_t flag_recent(struct atsi_sampler *s, int32_t *ids) {
    uint32_t n = 0, n_recent = s->n_recent < ATSI_PENALTY_WINDOW ? s->n_recent : ATSI_PENALTY_WINDOW;
    for (uint32_t i = 0; s->params.repeat_penalty != 1.0f && i < n_recent; i++) {
        int32_t id = s->recent[i];
        if (id < 0 || (uint32_t)id >= s->n_vocab || s->flags[id]) continue;
        s->flags[id] = PENALISED;
        ids[n++] = id;
    }
    return n;
}

static void offer_recent(struct best *b, struct atsi_sampler *s, const float *logits, const int32_t *ids, uint32_t n) {
    float penalty = s->params.repeat_penalty;
    for (uint32_t i = 0; i < n; i++) {
        float logit = logits[ids[i]];
        offer(b, (struct candidate){logit > 0 ? logit / penalty : logit * penalty, ids[i]});
        s->flags[ids[i]] = 0;
    }
}

// The k best, sorted, at the front of the candidates. Returns their number, 0 when a logit is NaN or infinite upwards, or none is finite.
static uint32_t collect_best(struct atsi_sampler *s, const float *logits, uint32_t k) {
    int32_t recent[ATSI_PENALTY_WINDOW];
    struct best best = {s->candidates, 0, k};
    if (!find_largest(s, logits)) return 0;
    uint32_t n_recent = flag_recent(s, recent);
    offer_blocks(&best, s, logits);
    offer_recent(&best, s, logits, recent, n_recent);
    if (best.n == 0) return 0;
    qsort(best.c, best.n, sizeof *best.c, compare);
    return isfinite(best.c[0].logit) ? best.n : 0;
}

// ---- choosing -----------------------------------------------------------------------------------------------------

// Weights exp((logit - best) / temp) of the first n candidates; returns their sum.
static double weigh(struct atsi_sampler *s, uint32_t n, float temp) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->weights[i] = expf((s->candidates[i].logit - s->candidates[0].logit) / temp);
        sum += s->weights[i];
    }
    return sum;
}

static uint32_t keep_likely(struct atsi_sampler *s, uint32_t n) {
    double sum = weigh(s, n, 1.0f), mass = 0;
    uint32_t kept = 0;
    while (kept < n && (kept == 0 || mass < (double)s->params.top_p * sum)) mass += s->weights[kept++];
    while (kept > 1 && s->weights[kept - 1] < s->params.min_p) kept--; // weights[0] is 1
    return kept;
}

enum atsi_status atsi_sampler_pick(struct atsi_sampler *s, const float *logits, int32_t *id, struct atsi_error *err) {
    bool greedy = s->params.temp <= 0;
    uint32_t k = greedy ? 1 : s->params.top_k > 0 ? (uint32_t)s->params.top_k : s->n_vocab;
    uint32_t n = collect_best(s, logits, k < s->n_vocab ? k : s->n_vocab);
    if (!n) return atsi_fail(err, ATSI_FAILED, "non-finite logits");
    *id = s->candidates[0].id;
    if (greedy) return ATSI_OK;
    n = keep_likely(s, n);
    double target = next_uniform(s) * weigh(s, n, s->params.temp);
    for (uint32_t i = 0; i < n; i++) {
        *id = s->candidates[i].id;
        target -= s->weights[i];
        if (target < 0) break;
    }
    return ATSI_OK;
}
