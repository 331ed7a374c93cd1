// routing.h: counts which experts the routers choose, while a model runs. Only when asked for: each router's ids are then copied to host
// memory behind it (on a device by a kernel in its stream, so that nothing waits), and counted when the round is over.
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

// Op i_op has written `ids`, n_rows rows on the host, or will have when `stream` gets there. Nothing happens for ops that are no routers;
// r NULL is fine.
void atsi_routing_keep(struct atsi_routing *r, uint32_t i_op, const struct atsi_rows_ref *ids, uint32_t n_rows);
enum atsi_status atsi_routing_keep_in_stream(struct atsi_routing *r, uint32_t i_op, const struct atsi_rows_ref *ids,
                                             uint32_t n_rows, struct atsi_stream *stream, struct atsi_error *err);
// Whether an op is a router whose ids are kept.
bool atsi_routing_wants(const struct atsi_routing *r, uint32_t i_op);

// After a round of n_tokens, when nothing of it is under way any more.
void atsi_routing_end_round(struct atsi_routing *r, uint32_t n_tokens);

const struct atsi_routing_stats *atsi_routing_stats_of(const struct atsi_routing *r);
// --stats: one line, averages over the routers; nothing for a model without.
enum atsi_status atsi_routing_report(FILE *f, const struct atsi_routing_stats *stats, struct atsi_error *err);

#endif
