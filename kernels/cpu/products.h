// products.h: the matrix products of a decoded token as a job whose items may be repeated (kernels/cpu/repeat.h).
//
// A job holds everything that its items read but the weights: the products' arguments and copies of their inputs, as later
// operations write over both. An item is a run of tiles of one product, as in kernels/matmul.h, and its result those rows: the
// numbers are those of atsi_matmul_chunk, to the bit.
#ifndef ATSI_KERNELS_CPU_PRODUCTS_H
#define ATSI_KERNELS_CPU_PRODUCTS_H

#include "kernels/cpu/repeat.h"
#include "kernels/matmul.h"

struct atsi_products;

// Jobs with room for inputs of in_bytes together; every product takes up to the next 64 of it.
struct atsi_repeat_kind atsi_products_kind(size_t in_bytes);
// Empties a job that was made for inputs of in_bytes.
struct atsi_products *atsi_products_clear(void *job, const struct atsi_matmul_kernels *k, size_t in_bytes);
// Adds a product of one token without pairs, whose input has in_bytes, in items of `tiles` tiles. False when it does not fit.
bool atsi_products_add(struct atsi_products *p, const struct atsi_matmul_args *args, size_t in_bytes, uint32_t tiles);
// What is done once an item, when its result stands where it belongs and before it counts as done. It is no part of the job: it may use
// whatever stands still during the phase. A job that was emptied does nothing.
typedef void atsi_products_kept(void *context, uint32_t item, int i_thread);
void atsi_products_when_kept(struct atsi_products *p, atsi_products_kept *kept, void *context);

#endif
