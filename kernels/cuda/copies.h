// copies.h: activations on their way between device memory and mapped host memory, in decode rounds: copies that follow one another go
// in one launch, with the mark that is posted behind them.
#ifndef ATSI_KERNELS_CUDA_COPIES_H
#define ATSI_KERNELS_CUDA_COPIES_H

#include "kernels/cuda/marks.h"

constexpr int COPIES_MAX = 4;

// Rows of n_slots slots, `width` 4-byte elements each.
struct copy {
    float *dst;
    const float *src;
    const int32_t *mine; // [row][n_slots] as the router wrote it, on the device; NULL: every slot is copied
    uint32_t dst_stride, src_stride, width, n_slots, n_rows;
    bool to_device; // with `mine`: slots that are not the device's, else those that are
};

struct copies {
    struct copy parts[COPIES_MAX]; // none writes what another reads or writes
    int n_parts;
};

// False: there is no room, or it depends on one of them.
bool copies_join(struct copies *waiting, const struct copy *c);
// Launches the copies, at least one.
void copies_launch(const struct copies *c, struct launch_stream stream);
// Posts a mark behind the copies in one launch. False, and nothing is launched: there are none, or too many for one block.
bool copies_launch_and_post(const struct copies *c, struct mark posted, struct launch_stream stream);
cudaError_t load_copies(void);

#endif
