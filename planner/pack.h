// pack.h: the bytes of a plan's tensors from those of a GGUF model.
#ifndef ATSI_PLANNER_PACK_H
#define ATSI_PLANNER_PACK_H

#include "kernels/cpu/pool.h"
#include "planner/lower.h"

// The packed tensor as it already stands in memory (plain layout, source rows in order), or NULL when it has to be made.
const void *atsi_pack_in_place(const struct atsi_tensor *tensor, const struct atsi_recipe *recipe);

// Makes the packed tensor at `dst` (tensor->size_bytes, any alignment), with all threads of the pool.
enum atsi_status atsi_pack_tensor(struct atsi_pool *pool, const struct atsi_tensor *tensor,
                                  const struct atsi_recipe *recipe, void *dst, struct atsi_error *err);

#endif
