// weights_internal.h: what weights.c (which tensor is where) and weights_load.c (bringing them there) share; private to both.
#ifndef ATSI_RUNTIME_WEIGHTS_INTERNAL_H
#define ATSI_RUNTIME_WEIGHTS_INTERNAL_H

#include "runtime/weights.h"

// Memory of its own for a tensor that cannot stay in the mapping: pinned where a device is to read it, if that can be had.
enum atsi_status weights_alloc_host(struct atsi_weights *w, uint32_t t, struct atsi_error *err);
// The mapped file as the host's copy of a tensor. False when it is stored compressed.
bool weights_use_mapping(struct atsi_weights *w, uint32_t t);
// Pins the file's resident section, once, for units that are not on the GPU any more. The pool (NULL: one for this) maps it first.
void weights_pin_resident(struct atsi_weights *w, struct atsi_pool *pool);
// Which units are on the GPU: homes, device addresses, which tensors the host reads.
void weights_set_homes(struct atsi_weights *w, uint32_t n_resident);
// After homes or host addresses have changed: who can travel, sums.
void weights_update(struct atsi_weights *w);

#endif
