#include "formats/routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/base/map.h"

static enum atsi_status no_memory(struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "out of memory for routing statistics");
}

static enum atsi_status make_layers(struct atsi_routing_stats *s, uint32_t n, struct atsi_error *err) {
    s->layers = calloc(n ? n : 1, sizeof *s->layers);
    return s->layers ? ATSI_OK : no_memory(err);
}

enum atsi_status atsi_routing_stats_init(const struct atsi_program *p, struct atsi_routing_stats *out,
                                         struct atsi_error *err) {
    *out = (struct atsi_routing_stats){0};
    ATSI_TRY(make_layers(out, p->n_ops, err));
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct atsi_router_params *r = &p->ops[i].u.router;
        if (p->ops[i].kind != ATSI_OP_ROUTER) continue;
        struct atsi_routing_layer *l = &out->layers[out->n_layers++];
        *l = (struct atsi_routing_layer){
            .layer = p->units[atsi_program_unit_of(p, i)].layer, .n_experts = r->n_experts, .n_used = r->n_used};
        l->counts = calloc(l->n_experts, sizeof *l->counts);
        if (!l->counts) return no_memory(err);
    }
    return ATSI_OK;
}

void atsi_routing_stats_free(struct atsi_routing_stats *stats) {
    for (uint32_t i = 0; i < stats->n_layers; i++) free(stats->layers[i].counts);
    free(stats->layers);
    memset(stats, 0, sizeof *stats);
}

// ---- the file -----------------------------------------------------------------------------------------------------

static bool put_layer(cJSON *list, const struct atsi_routing_layer *l) {
    cJSON *o = cJSON_CreateObject(), *counts = NULL;
    if (!o || !cJSON_AddItemToArray(list, o)) return false;
    bool good = atsi_json_put(o, "layer", l->layer) && atsi_json_put(o, "n_experts", l->n_experts) &&
                atsi_json_put(o, "n_used", l->n_used) && atsi_json_put(o, "n_tokens", (double)l->n_tokens) &&
                atsi_json_put(o, "n_reused", (double)l->n_reused) && (counts = cJSON_AddArrayToObject(o, "counts"));
    for (uint32_t e = 0; good && e < l->n_experts; e++) {
        cJSON *count = cJSON_CreateNumber((double)l->counts[e]);
        good = count && cJSON_AddItemToArray(counts, count);
    }
    return good;
}

enum atsi_status atsi_routing_to_json(const struct atsi_routing_stats *stats, char **json, struct atsi_error *err) {
    cJSON *root = cJSON_CreateObject(), *list = NULL;
    bool good = root && atsi_json_put(root, "version", ATSI_ROUTING_VERSION) &&
                (list = cJSON_AddArrayToObject(root, "routers"));
    for (uint32_t i = 0; good && i < stats->n_layers; i++) good = put_layer(list, &stats->layers[i]);
    *json = good ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return *json ? ATSI_OK : no_memory(err);
}

static enum atsi_status get_count(const cJSON *object, const char *field, uint64_t most, uint64_t *out,
                                  struct atsi_error *err) {
    int64_t value = 0;
    ATSI_TRY(atsi_json_get_i64(object, field, 0, (int64_t)most, &value, err));
    *out = (uint64_t)value;
    return ATSI_OK;
}

static enum atsi_status read_counts(const cJSON *o, struct atsi_routing_layer *l, struct atsi_error *err) {
    const cJSON *list, *item;
    uint64_t sum = 0;
    uint32_t e = 0;
    ATSI_TRY(atsi_json_get_array(o, "counts", &list, err));
    l->counts = calloc(l->n_experts, sizeof *l->counts);
    if (!l->counts) return no_memory(err);
    cJSON_ArrayForEach(item, list) {
        bool fits = atsi_json_is_integer(item) && item->valuedouble >= 0 && item->valuedouble <= (double)l->n_tokens;
        if (e == l->n_experts || !fits)
            return atsi_fail(err, ATSI_BAD_INPUT, "counts[%u]: more than n_experts, or no count up to n_tokens", e);
        sum += l->counts[e++] = (uint64_t)item->valuedouble;
    }
    if (e == l->n_experts && sum == l->n_tokens * l->n_used) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "counts: one for each expert, n_tokens * n_used in all");
}

static enum atsi_status read_layer(const cJSON *o, struct atsi_routing_layer *l, struct atsi_error *err) {
    int64_t layer;
    uint64_t n_experts, n_used, most = UINT64_C(1) << 40;
    ATSI_TRY(atsi_json_get_i64(o, "layer", 0, ATSI_MAX_UNITS, &layer, err));
    ATSI_TRY(get_count(o, "n_experts", 1 << 16, &n_experts, err));
    ATSI_TRY(get_count(o, "n_used", n_experts, &n_used, err));
    ATSI_TRY(get_count(o, "n_tokens", most, &l->n_tokens, err));
    ATSI_TRY(get_count(o, "n_reused", l->n_tokens * n_used, &l->n_reused, err));
    if (n_used == 0) return atsi_fail(err, ATSI_BAD_INPUT, "n_used: must be positive");
    l->layer = (int32_t)layer;
    l->n_experts = (uint32_t)n_experts;
    l->n_used = (uint32_t)n_used;
    return read_counts(o, l, err);
}

static enum atsi_status read_root(const cJSON *root, struct atsi_routing_stats *out, struct atsi_error *err) {
    const cJSON *list, *item;
    int64_t version;
    ATSI_TRY(atsi_json_get_i64(root, "version", ATSI_ROUTING_VERSION, ATSI_ROUTING_VERSION, &version, err));
    ATSI_TRY(atsi_json_get_array(root, "routers", &list, err));
    ATSI_TRY(make_layers(out, (uint32_t)cJSON_GetArraySize(list), err));
    cJSON_ArrayForEach(item, list) {
        uint32_t i = out->n_layers++; // counted first, so that what it holds is freed
        const struct atsi_routing_layer *l = &out->layers[i];
        if (read_layer(item, &out->layers[i], err) != ATSI_OK) return atsi_fail_prefix(err, "routers[%u]", i);
        if (atsi_routing_find(out, l->layer, l->n_experts) != l)
            return atsi_fail(err, ATSI_BAD_INPUT, "routers[%u]: a second one of layer %d", i, l->layer);
    }
    return ATSI_OK;
}

enum atsi_status atsi_routing_parse(const char *json, uint64_t size, struct atsi_routing_stats *out,
                                    struct atsi_error *err) {
    cJSON *root;
    *out = (struct atsi_routing_stats){0};
    ATSI_TRY(atsi_json_parse(json, size, &root, err));
    enum atsi_status status = read_root(root, out, err);
    cJSON_Delete(root);
    return status;
}

enum atsi_status atsi_routing_read(const char *path, struct atsi_routing_stats *out, struct atsi_error *err) {
    struct atsi_map map;
    *out = (struct atsi_routing_stats){0};
    ATSI_TRY(atsi_map_open(&map, path, err));
    enum atsi_status status = map.size_bytes <= ATSI_ROUTING_FILE_MAX
                                  ? atsi_routing_parse((const char *)map.data, map.size_bytes, out, err)
                                  : atsi_fail(err, ATSI_BAD_INPUT, "larger than %d bytes", (int)ATSI_ROUTING_FILE_MAX);
    atsi_map_close(&map);
    return status == ATSI_OK ? ATSI_OK : atsi_fail_prefix(err, "%s", path);
}

const struct atsi_routing_layer *atsi_routing_find(const struct atsi_routing_stats *stats, int32_t layer,
                                                   uint32_t n_experts) {
    for (uint32_t i = 0; i < stats->n_layers; i++)
        if (stats->layers[i].layer == layer && stats->layers[i].n_experts == n_experts) return &stats->layers[i];
    return NULL;
}

static enum atsi_status check_router(const struct atsi_routing_stats *stats, int32_t layer,
                                     const struct atsi_router_params *r, struct atsi_error *err) {
    const struct atsi_routing_layer *l = atsi_routing_find(stats, layer, r->n_experts);
    if (l && l->n_tokens > 0 && l->n_used == r->n_used) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "nothing is known of layer %d with %u of %u experts", layer, r->n_used,
                     r->n_experts);
}

enum atsi_status atsi_routing_check(const struct atsi_routing_stats *stats, const struct atsi_program *p,
                                    struct atsi_error *err) {
    bool any = false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != ATSI_OP_ROUTER) continue;
        any = true;
        ATSI_TRY(check_router(stats, p->units[atsi_program_unit_of(p, i)].layer, &p->ops[i].u.router, err));
    }
    return any ? ATSI_OK : atsi_fail(err, ATSI_BAD_INPUT, "the model has no experts");
}

void atsi_routing_add(struct atsi_routing_stats *into, const struct atsi_routing_stats *more) {
    for (uint32_t i = 0; i < into->n_layers; i++) {
        struct atsi_routing_layer *l = &into->layers[i];
        const struct atsi_routing_layer *other = atsi_routing_find(more, l->layer, l->n_experts);
        if (!other || other->n_used != l->n_used) continue;
        l->n_tokens += other->n_tokens;
        l->n_reused += other->n_reused;
        for (uint32_t e = 0; e < l->n_experts; e++) l->counts[e] += other->counts[e];
    }
}

// ---- what the counts say ------------------------------------------------------------------------------------------

static int compare_counts(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

enum atsi_status atsi_routing_hot_share(const struct atsi_routing_layer *l, uint32_t n_hot, double *share,
                                        struct atsi_error *err) {
    uint64_t sum = 0, *sorted = malloc(l->n_experts * sizeof *sorted);
    if (!sorted) return no_memory(err);
    memcpy(sorted, l->counts, l->n_experts * sizeof *sorted);
    qsort(sorted, l->n_experts, sizeof *sorted, compare_counts);
    for (uint32_t e = 0; e < n_hot; e++) sum += sorted[e];
    free(sorted);
    *share = l->n_tokens ? (double)sum / ((double)l->n_tokens * l->n_used) : 0;
    return ATSI_OK;
}

double atsi_routing_reused_share(const struct atsi_routing_layer *l) {
    return l->n_tokens > 1 ? (double)l->n_reused / ((double)(l->n_tokens - 1) * l->n_used) : 0;
}

double atsi_routing_active_share(const struct atsi_routing_layer *l, uint32_t n_tokens) {
    double active = 0;
    for (uint32_t e = 0; l->n_tokens && e < l->n_experts; e++)
        active += 1 - pow(1 - (double)l->counts[e] / (double)l->n_tokens, n_tokens);
    return active / l->n_experts;
}

enum atsi_status atsi_routing_means_of(const struct atsi_routing_stats *stats, uint32_t n_tokens,
                                       struct atsi_routing_means *out, struct atsi_error *err) {
    *out = (struct atsi_routing_means){0};
    for (uint32_t i = 0; i < stats->n_layers; i++) {
        const struct atsi_routing_layer *l = &stats->layers[i];
        double share;
        ATSI_TRY(atsi_routing_hot_share(l, (l->n_experts + 7) / 8, &share, err));
        out->eighth_share += share / stats->n_layers;
        out->reused_share += atsi_routing_reused_share(l) / stats->n_layers;
        out->chunk_share += atsi_routing_active_share(l, n_tokens) / stats->n_layers;
    }
    return ATSI_OK;
}
