// routing.h: how often a model's routers chose each expert, counted over a text (atsi-run --save-routing, atsi-plan --routing).
#ifndef ATSI_FORMATS_ROUTING_H
#define ATSI_FORMATS_ROUTING_H

#include <stdint.h>

#include "formats/base/error.h"
#include "formats/program.h"

enum {
    ATSI_ROUTING_VERSION = 1,
    ATSI_ROUTING_FILE_MAX = 64 << 20
};

// One router.
struct atsi_routing_layer {
    int32_t layer; // of the model
    uint32_t n_experts, n_used;
    uint64_t n_tokens;
    uint64_t n_reused; // chosen experts that the token before had chosen too
    uint64_t *counts;  // [n_experts] tokens that chose each; they add up to n_tokens * n_used
};

struct atsi_routing_stats {
    struct atsi_routing_layer *layers;
    uint32_t n_layers;
};

// A layer with nothing counted for every router of the program, in order. Free with atsi_routing_stats_free whether it succeeds
// or not.
enum atsi_status atsi_routing_stats_init(const struct atsi_program *p, struct atsi_routing_stats *out,
                                         struct atsi_error *err);
void atsi_routing_stats_free(struct atsi_routing_stats *stats);

// The text of a file; freed with free().
enum atsi_status atsi_routing_to_json(const struct atsi_routing_stats *stats, char **json, struct atsi_error *err);
// Strict, regular files only; ATSI_BAD_INPUT names file and field. Free with atsi_routing_stats_free whether it succeeds or not.
enum atsi_status atsi_routing_read(const char *path, struct atsi_routing_stats *out, struct atsi_error *err);
enum atsi_status atsi_routing_parse(const char *json, uint64_t size, struct atsi_routing_stats *out,
                                    struct atsi_error *err);
// The router's layer, NULL when the statistics have none of that layer with as many experts.
const struct atsi_routing_layer *atsi_routing_find(const struct atsi_routing_stats *stats, int32_t layer,
                                                   uint32_t n_experts);

// Whether every router of the program has been counted with its numbers of experts; else ATSI_BAD_INPUT names what is not known.
enum atsi_status atsi_routing_check(const struct atsi_routing_stats *stats, const struct atsi_program *p,
                                    struct atsi_error *err);

// Adds the counts of `more` to the same routers of `into`; what `into` does not have is left out.
void atsi_routing_add(struct atsi_routing_stats *into, const struct atsi_routing_stats *more);

// Averages over the layers.
struct atsi_routing_means {
    double eighth_share; // of all choices that go to the hottest eighth of the experts
    double reused_share; // of a token's experts that the token before had chosen too
    double chunk_share;  // of the experts that n_tokens tokens need together
};
enum atsi_status atsi_routing_means_of(const struct atsi_routing_stats *stats, uint32_t n_tokens,
                                       struct atsi_routing_means *out, struct atsi_error *err);

// Share of all choices that went to the `n_hot` experts chosen most often; 0 when nothing was counted. 0 <= n_hot <= n_experts.
enum atsi_status atsi_routing_hot_share(const struct atsi_routing_layer *l, uint32_t n_hot, double *share,
                                        struct atsi_error *err);
// Share of a token's experts that the token before had chosen too.
double atsi_routing_reused_share(const struct atsi_routing_layer *l);
// Share of the experts that n_tokens tokens need together, if each chooses by these counts: mean of 1 - (1 - p)^n, where p is the
// part of the tokens that chose an expert.
double atsi_routing_active_share(const struct atsi_routing_layer *l, uint32_t n_tokens);

#endif
