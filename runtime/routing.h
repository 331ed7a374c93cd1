// routing.h: counts which experts the routers choose, while a model runs. Routers write their ids a second time, to host memory (on a
// device through its mapping, so that nothing waits), and they are counted when the round is over.
#ifndef ATSI_RUNTIME_ROUTING_H
#define ATSI_RUNTIME_ROUTING_H

#include <stdio.h>

#include "formats/routing.h"
#include "kernels/device.h"

struct atsi_routing;

// For rounds of up to n_tokens_max tokens. `device` (NULL: none) is borrowed and outlives the counter. Counts every round from
// now on as one text.
enum atsi_status atsi_routing_create(const struct atsi_program *p, uint32_t n_tokens_max, struct atsi_device *device,
                                     struct atsi_routing **out, struct atsi_error *err);
void atsi_routing_free(struct atsi_routing *r); // NULL fine
// At most what a counter takes of pinned memory.
uint64_t atsi_routing_pinned_bytes(const struct atsi_program *p, uint32_t n_tokens_max);

// Where op i_op is to write its ids of a round for a second time (kernels/op_call.h, `chosen`), as an address of that side; NULL for ops
// that are no routers, and without a counter (r NULL).
int32_t *atsi_routing_place(const struct atsi_routing *r, uint32_t i_op, enum atsi_backend side);

// After a round of n_tokens, when nothing of it is under way any more.
void atsi_routing_end_round(struct atsi_routing *r, uint32_t n_tokens);

// What the i_router-th router of the program chose in the last round: rows of its n_used.
const int32_t *atsi_routing_chosen(const struct atsi_routing *r, uint32_t i_router);
const struct atsi_routing_stats *atsi_routing_stats_of(const struct atsi_routing *r);
// --stats: one line, averages over the routers; nothing for a model without.
enum atsi_status atsi_routing_report(FILE *f, const struct atsi_routing_stats *stats, struct atsi_error *err);

#endif
