// pack.h: the bytes of a plan's tensors from those of a GGUF model.
#ifndef ATSI_PLANNER_PACK_H
#define ATSI_PLANNER_PACK_H

#include "kernels/cpu/pool.h"
#include "planner/lower.h"

// Takes the packed bytes piece by piece, in order.
typedef enum atsi_status atsi_pack_sink(void *user, const void *data, uint64_t size_bytes, struct atsi_error *err);

// Makes the packed tensor with all threads of the pool and hands its tensor->size_bytes bytes to `sink`. Memory use does not
// grow with the tensor: a batch of rows is held at a time.
enum atsi_status atsi_pack_tensor(struct atsi_pool *pool, const struct atsi_tensor *tensor,
                                  const struct atsi_recipe *recipe, atsi_pack_sink *sink, void *user,
                                  struct atsi_error *err);

#endif
