#include "runtime/routing.h"

#include <stdlib.h>
#include <string.h>

enum {
    NO_ROUTER = UINT32_MAX
};

struct atsi_routing {
    struct atsi_routing_stats stats;
    uint32_t n_tokens_max, n_used_max;
    uint32_t *router_of_op; // [n_ops] index into stats.layers, or NO_ROUTER
    struct atsi_device *device;
    int32_t *ids, *ids_dev; // [n_layers][n_tokens_max * n_used_max] of the round at hand; and its device address
    uint64_t **last_used;   // [n_layers][n_experts] 1 + the token that chose it last, 0: none
};

static uint64_t ids_count(const struct atsi_routing *r) {
    return (uint64_t)(r->stats.n_layers ? r->stats.n_layers : 1) * r->n_tokens_max * r->n_used_max;
}

uint64_t atsi_routing_pinned_bytes(const struct atsi_program *p, uint32_t n_tokens_max) {
    uint64_t n_routers = 0, n_used_max = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != ATSI_OP_ROUTER) continue;
        n_routers++;
        if (p->ops[i].u.router.n_used > n_used_max) n_used_max = p->ops[i].u.router.n_used;
    }
    return (n_routers ? n_routers : 1) * n_tokens_max * (n_used_max ? n_used_max : 1) * sizeof(int32_t);
}

static enum atsi_status alloc_ids(struct atsi_routing *r, struct atsi_error *err) {
    uint64_t bytes = ids_count(r) * sizeof *r->ids;
    void *host = NULL, *dev = NULL;
    if (r->device)
        ATSI_TRY(r->device->ops->host_alloc(r->device, bytes, &host, &dev, err));
    else if (!(host = malloc(bytes)))
        return atsi_fail(err, ATSI_FAILED, "out of memory for routing statistics");
    memset(host, 0, bytes);
    r->ids = host;
    r->ids_dev = dev;
    return ATSI_OK;
}

static enum atsi_status open_routing(struct atsi_routing *r, const struct atsi_program *p, struct atsi_error *err) {
    uint32_t n = 0;
    ATSI_TRY(atsi_routing_stats_init(p, &r->stats, err));
    r->router_of_op = malloc(p->n_ops * sizeof *r->router_of_op);
    r->last_used = calloc(r->stats.n_layers + 1, sizeof *r->last_used);
    if (!r->router_of_op || !r->last_used) return atsi_fail(err, ATSI_FAILED, "out of memory for routing statistics");
    for (uint32_t i = 0; i < p->n_ops; i++) {
        r->router_of_op[i] = NO_ROUTER;
        if (p->ops[i].kind != ATSI_OP_ROUTER) continue;
        const struct atsi_routing_layer *l = &r->stats.layers[n];
        if (l->n_used > r->n_used_max) r->n_used_max = l->n_used;
        r->last_used[n] = calloc(l->n_experts, sizeof **r->last_used);
        if (!r->last_used[n]) return atsi_fail(err, ATSI_FAILED, "out of memory for routing statistics");
        r->router_of_op[i] = n++;
    }
    return alloc_ids(r, err);
}

enum atsi_status atsi_routing_create(const struct atsi_program *p, uint32_t n_tokens_max, struct atsi_device *device,
                                     struct atsi_routing **out, struct atsi_error *err) {
    struct atsi_routing *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return atsi_fail(err, ATSI_FAILED, "out of memory for routing statistics");
    *r = (struct atsi_routing){.n_tokens_max = n_tokens_max, .n_used_max = 1, .device = device};
    enum atsi_status status = open_routing(r, p, err);
    if (status == ATSI_OK)
        *out = r;
    else
        atsi_routing_free(r);
    return status;
}

void atsi_routing_free(struct atsi_routing *r) {
    if (!r) return;
    if (r->ids && r->device)
        r->device->ops->host_free(r->device, r->ids);
    else
        free(r->ids);
    for (uint32_t i = 0; r->last_used && i < r->stats.n_layers; i++) free(r->last_used[i]);
    free(r->last_used);
    free(r->router_of_op);
    atsi_routing_stats_free(&r->stats);
    free(r);
}

// Where the ids of a router stand, from the start of all.
static uint64_t place_of(const struct atsi_routing *r, uint32_t router) {
    return (uint64_t)router * r->n_tokens_max * r->n_used_max;
}

int32_t *atsi_routing_place(const struct atsi_routing *r, uint32_t i_op, enum atsi_backend side) {
    if (!r || r->router_of_op[i_op] == NO_ROUTER) return NULL;
    return (side == ATSI_GPU ? r->ids_dev : r->ids) + place_of(r, r->router_of_op[i_op]);
}

const int32_t *atsi_routing_chosen(const struct atsi_routing *r, uint32_t i_router) {
    return r->ids + place_of(r, i_router);
}

static void count_token(struct atsi_routing_layer *l, uint64_t *last_used, const int32_t *ids) {
    uint64_t token = ++l->n_tokens;
    for (uint32_t k = 0; k < l->n_used; k++) {
        l->counts[ids[k]]++;
        l->n_reused += token > 1 && last_used[ids[k]] == token - 1;
        last_used[ids[k]] = token;
    }
}

void atsi_routing_end_round(struct atsi_routing *r, uint32_t n_tokens) {
    for (uint32_t i = 0; r && i < r->stats.n_layers; i++)
        for (uint32_t t = 0; t < n_tokens; t++)
            count_token(&r->stats.layers[i], r->last_used[i],
                        atsi_routing_chosen(r, i) + (uint64_t)t * r->stats.layers[i].n_used);
}

const struct atsi_routing_stats *atsi_routing_stats_of(const struct atsi_routing *r) { return &r->stats; }

enum atsi_status atsi_routing_report(FILE *f, const struct atsi_routing_stats *s, struct atsi_error *err) {
    double eighth = 0, half = 0, reused = 0, distinct = 0;
    if (s->n_layers == 0) return ATSI_OK;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        const struct atsi_routing_layer *l = &s->layers[i];
        double share;
        uint32_t n_seen = 0;
        ATSI_TRY(atsi_routing_hot_share(l, (l->n_experts + 7) / 8, &share, err));
        eighth += share / s->n_layers;
        ATSI_TRY(atsi_routing_hot_share(l, (l->n_experts + 1) / 2, &share, err));
        half += share / s->n_layers;
        for (uint32_t e = 0; e < l->n_experts; e++) n_seen += l->counts[e] > 0;
        distinct += (double)n_seen / s->n_layers;
        reused += atsi_routing_reused_share(l) / s->n_layers;
    }
    fprintf(
        f,
        "experts  %u of %u chosen by each of %llu tokens in %u layers; used at all %.1f a layer; the hottest eighth "
        "gets %.1f %%, half %.1f %%; %.1f %% were chosen by the token before too\n",
        s->layers[0].n_used, s->layers[0].n_experts, (unsigned long long)s->layers[0].n_tokens, s->n_layers, distinct,
        100 * eighth, 100 * half, 100 * reused);
    return ATSI_OK;
}
