// waiting.h: launches that are held back because the next operations may join them.
//
// A launch costs as much as a small operation, so products that read the same inputs (q, k and v; gate and up) and what happens to
// attention heads one by one (norms, rotations, storing in the cache) are collected and launched together, before the first
// operation that does not join. Everything else that touches the stream flushes it first.
#ifndef ATSI_KERNELS_CUDA_WAITING_H
#define ATSI_KERNELS_CUDA_WAITING_H

#include "kernels/cuda/heads.h"
#include "kernels/cuda/tiled.h"

// At most one of the two is there.
struct waiting {
    const struct tiled_type *type; // of `products`; NULL: none
    struct tiled_args products;    // of vectors
    struct heads_args heads;       // n_parts 0: none
};

// Launches what waits.
static inline void waiting_launch(struct waiting *w, struct launch_stream stream) {
    if (w->type) w->type->vector(&w->products, stream);
    if (w->heads.n_parts > 0) heads_launch(&w->heads, stream);
    w->type = NULL;
    w->heads.n_parts = 0;
}

#endif
