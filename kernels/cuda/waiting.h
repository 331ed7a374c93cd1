// waiting.h: launches that are held back because the next operations may join them.
//
// A launch costs as much as a small operation, so products that read the same inputs (q, k and v; gate and up) and what happens to
// attention heads one by one (norms, rotations, storing in the cache) are collected and launched together, before the first
// operation that does not join. Products go first: the heads may be theirs. Everything else that touches the stream flushes it first.
#ifndef ATSI_KERNELS_CUDA_WAITING_H
#define ATSI_KERNELS_CUDA_WAITING_H

#include "kernels/cuda/copies.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/router.h"
#include "kernels/cuda/tiled.h"

// Most kernels start their successor at once, and it may count on nothing before its wait. These start it behind their own wait, so that
// all launches before them are complete when it starts: what reads a router's choice may do so before it waits.
enum starts_late {
    NONE_STARTS_LATE,
    EXPERTS_START_LATE, // a launch of tiled vectors with experts
    GLU_STARTS_LATE     // an activation right behind one, or in it
};

// Of these at most one waits: products with heads behind them, a norm with a router's scores behind it, copies, a
// sum of experts.
struct waiting {
    const struct tiled_type *type; // of `products`; NULL: none
    struct tiled_args products;    // of vectors
    struct heads_args heads;       // n_parts 0: none
    struct norm_args norm;         // n_rows 0: none
    struct plain_args scores;      // n_in 0: none
    struct copies copies;
    struct expert_sum_args sum; // n_rows 0: none
    enum starts_late before;    // what was launched last
};

static inline bool waiting_has_heads(const struct waiting *w) { return w->type || w->heads.n_parts > 0; }
static inline bool waiting_has_copies(const struct waiting *w) { return w->copies.n_parts > 0; }
static inline bool waiting_has_sum(const struct waiting *w) { return w->sum.n_rows > 0; }

static inline bool waiting_has_any(const struct waiting *w) {
    return waiting_has_heads(w) || waiting_has_copies(w) || waiting_has_sum(w) || w->norm.n_rows > 0 ||
           w->scores.n_in > 0;
}

// Launches the products; the heads go on waiting.
static inline void waiting_launch_products(struct waiting *w, struct launch_stream stream) {
    if (!w->type) return;
    w->type->vector(&w->products, stream);
    w->type = NULL;
    w->before = w->products.experts.ids ? EXPERTS_START_LATE : NONE_STARTS_LATE;
}

static inline void waiting_launch_scores(struct waiting *w, struct launch_stream stream) {
    if (w->norm.n_rows > 0) norm_launch(&w->norm, stream);
    if (w->scores.n_in > 0) plain_vector(ATSI_F32, &w->scores, stream);
    w->norm.n_rows = 0;
    w->scores.n_in = 0;
}

// Launches what waits.
static inline void waiting_launch(struct waiting *w, struct launch_stream stream) {
    waiting_launch_products(w, stream);
    if (waiting_has_any(w)) w->before = NONE_STARTS_LATE;
    if (w->heads.n_parts > 0) heads_launch(&w->heads, stream);
    if (w->sum.n_rows > 0) expert_sum_launch(&w->sum, stream);
    waiting_launch_scores(w, stream);
    if (w->copies.n_parts > 0) copies_launch(&w->copies, stream);
    w->copies.n_parts = 0;
    w->heads.n_parts = 0;
    w->sum.n_rows = 0;
}

#endif
