// routing_cache.h: routing statistics of a model that runs leave for its next plan, in the user's cache folder beside the device profiles.
#ifndef ATSI_FORMATS_ROUTING_CACHE_H
#define ATSI_FORMATS_ROUTING_CACHE_H

#include "formats/routing.h"

// The file of the model with this identity (plan->model.gguf_hash): $XDG_CACHE_HOME/atsi/routing-HASH.json, or ~/.cache/atsi/... Returns
// memory from malloc, NULL when there is no such folder to use.
char *atsi_routing_cache_path(uint64_t gguf_hash);

// Whether there are sound statistics of this program's routers; then they are in *out. Free with atsi_routing_stats_free whether there
// are or not.
bool atsi_routing_cache_load(const char *path, const struct atsi_program *p, struct atsi_routing_stats *out);
// Adds what was counted for this program to the file; what it held before goes on counting. ATSI_FAILED when it cannot be written. Of two
// programs that add at the same time, one may be lost.
enum atsi_status atsi_routing_cache_add(const char *path, const struct atsi_program *p,
                                        const struct atsi_routing_stats *counted, struct atsi_error *err);

#endif
