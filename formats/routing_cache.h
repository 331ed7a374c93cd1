// routing_cache.h: routing statistics of a model that runs leave for its next plan, in the user's cache folder beside the device profiles.
#ifndef ATSI_FORMATS_ROUTING_CACHE_H
#define ATSI_FORMATS_ROUTING_CACHE_H

#include "formats/routing.h"

// The file of the model with this identity (plan->model.gguf_hash): $XDG_CACHE_HOME/atsi/routing-HASH.json, or ~/.cache/atsi/... Returns
// memory from malloc, NULL when there is no such folder to use.
char *atsi_routing_cache_path(uint64_t gguf_hash);

// Whether there are sound statistics of this program's routers; then they are in *out. Of a file that is there and not sound *why says what
// is wrong, else its text is empty. Free with atsi_routing_stats_free whether there are any or not.
bool atsi_routing_cache_load(const char *path, const struct atsi_program *p, struct atsi_routing_stats *out,
                             struct atsi_error *why);
// Adds what was counted for this program to the file; what it held before goes on counting, also where two programs add at the same
// time (as long as the folder can be locked: cache_folder.h). ATSI_FAILED when it cannot be written.
enum atsi_status atsi_routing_cache_add(const char *path, const struct atsi_program *p,
                                        const struct atsi_routing_stats *counted, struct atsi_error *err);

#endif
