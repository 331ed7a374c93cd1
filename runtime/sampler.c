#include "runtime/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    float logit; // after the penalty
    int32_t id;
};

struct atsi_sampler {
    struct atsi_sampler_params params;
    uint32_t n_vocab, n_banned;
    bool *banned;                        // [n_vocab]
    struct candidate *candidates;        // [n_vocab]
    float *weights;                      // [n_vocab]
    int32_t recent[ATSI_PENALTY_WINDOW]; // ring of the last tokens
    uint32_t n_recent;                   // ever accepted
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
        s->banned = calloc(n_vocab, sizeof *s->banned);
        s->candidates = calloc(n_vocab, sizeof *s->candidates);
        s->weights = calloc(n_vocab, sizeof *s->weights);
    }
    if (!s || !s->banned || !s->candidates || !s->weights) {
        atsi_sampler_free(s);
        return atsi_fail(err, ATSI_FAILED, "out of memory while creating the sampler");
    }
    for (uint32_t i = 0; i < n_banned; i++)
        if (banned[i] >= 0 && (uint32_t)banned[i] < n_vocab) s->banned[banned[i]] = true;
    uint64_t x = params->seed;
    s->random[0] = splitmix64(&x);
    s->random[1] = splitmix64(&x);
    *out = s;
    return ATSI_OK;
}

void atsi_sampler_free(struct atsi_sampler *s) {
    if (!s) return;
    free(s->banned);
    free(s->candidates);
    free(s->weights);
    free(s);
}

void atsi_sampler_accept(struct atsi_sampler *s, int32_t id) { s->recent[s->n_recent++ % ATSI_PENALTY_WINDOW] = id; }

// ---- choosing -----------------------------------------------------------------------------------------------------

static bool ranks_before(const struct candidate *a, const struct candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static int compare(const void *a, const void *b) { return ranks_before(a, b) ? -1 : 1; }

// All tokens that may come out, in id order. Returns their number, 0 when a logit is NaN or none is finite.
static uint32_t collect(struct atsi_sampler *s, const float *logits) {
    uint32_t n = 0;
    bool any_finite = false, any_nan = false;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        any_nan |= isnan(logits[i]);
        if (s->banned[i]) continue;
        any_finite |= isfinite(logits[i]);
        s->candidates[n++] = (struct candidate){logits[i], (int32_t)i};
    }
    return any_finite && !any_nan ? n : 0;
}

// Every recent token once: positive logits divided, negative multiplied.
static void penalise(struct atsi_sampler *s, const float *logits, uint32_t n) {
    if (s->params.repeat_penalty == 1.0f) return;
    uint32_t n_recent = s->n_recent < ATSI_PENALTY_WINDOW ? s->n_recent : ATSI_PENALTY_WINDOW;
    for (uint32_t i = 0; i < n; i++) {
        struct candidate *c = &s->candidates[i];
        for (uint32_t k = 0; k < n_recent; k++)
            if (s->recent[k] == c->id) {
                float logit = logits[c->id];
                c->logit = logit > 0 ? logit / s->params.repeat_penalty : logit * s->params.repeat_penalty;
                break;
            }
    }
}

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

// Leaves the k best, sorted, at the front.
static uint32_t keep_top_k(struct candidate *c, uint32_t n, uint32_t k) {
    if (k < n) {
        for (uint32_t i = k / 2; i-- > 0;) sift_down(c, k, i);
        for (uint32_t i = k; i < n; i++)
            if (ranks_before(&c[i], &c[0])) {
                c[0] = c[i];
                sift_down(c, k, 0);
            }
        n = k;
    }
    qsort(c, n, sizeof *c, compare);
    return n;
}

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
    uint32_t n = collect(s, logits);
    if (!n) return atsi_fail(err, ATSI_FAILED, "non-finite logits");
    penalise(s, logits, n);
    bool greedy = s->params.temp <= 0;
    uint32_t k = greedy ? 1 : s->params.top_k > 0 ? (uint32_t)s->params.top_k : n;
    n = keep_top_k(s->candidates, n, k < n ? k : n);
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
