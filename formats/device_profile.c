#include "formats/device_profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/escape.h"
#include "formats/base/json.h"

static const char *const side_words[] = {"cpu", "gpu"};
static const char *const phase_words[] = {"decode", "prefill"};
static const char *const origin_words[] = {"measured", "modelled"};

static const double most_us = 1e12, most_rate = 1e12, most_work = 1e18, least_rate = 1e-6;

// ---- reading ------------------------------------------------------------------------------------------------------

static enum atsi_status get_text(const cJSON *object, const char *field, char *out, size_t out_size,
                                 struct atsi_error *err) {
    const char *text;
    ATSI_TRY(atsi_json_get_string(object, field, &text, err));
    atsi_escape(out, out_size, text, strlen(text));
    return ATSI_OK;
}

static enum atsi_status get_u64(const cJSON *object, const char *field, uint64_t *out, struct atsi_error *err) {
    int64_t value;
    ATSI_TRY(atsi_json_get_i64(object, field, 0, (int64_t)ATSI_JSON_INTEGER_END - 1, &value, err));
    *out = (uint64_t)value;
    return ATSI_OK;
}

static enum atsi_status get_u32(const cJSON *object, const char *field, int64_t min, int64_t max, uint32_t *out,
                                struct atsi_error *err) {
    int64_t value;
    ATSI_TRY(atsi_json_get_i64(object, field, min, max, &value, err));
    *out = (uint32_t)value;
    return ATSI_OK;
}

// A time from 0 to `most`; profiles of earlier versions lack it, and then *out stays.
static enum atsi_status get_optional(const cJSON *object, const char *field, double most, double *out,
                                     struct atsi_error *err) {
    if (!cJSON_GetObjectItemCaseSensitive(object, field)) return ATSI_OK;
    return atsi_json_get_double(object, field, 0, most, out, err);
}

static enum atsi_status read_sources(const cJSON *root, struct atsi_device_profile *p, struct atsi_error *err) {
    const cJSON *list, *item;
    size_t size;
    ATSI_TRY(atsi_json_get_array(root, "sources", &list, err));
    FILE *stream = open_memstream(&p->sources, &size);
    if (!stream) return atsi_out_of_memory(err);
    bool good = true;
    cJSON_ArrayForEach(item, list) {
        char line[1024];
        if (!cJSON_IsString(item))
            good = false;
        else {
            atsi_escape(line, sizeof line, item->valuestring, strlen(item->valuestring));
            fprintf(stream, "%s\n", line);
        }
    }
    if (fclose(stream) != 0) return atsi_out_of_memory(err);
    return good ? ATSI_OK : atsi_fail(err, ATSI_BAD_INPUT, "sources: not a list of strings");
}

static enum atsi_status read_host(const cJSON *root, struct atsi_device_profile *p, struct atsi_error *err) {
    const cJSON *host;
    ATSI_TRY(atsi_json_get_object(root, "host", &host, err));
    if (get_text(host, "cpu", p->cpu_name, sizeof p->cpu_name, err) ||
        get_u32(host, "n_threads", 1, 4096, &p->n_threads, err) || get_u64(host, "memory_bytes", &p->host_bytes, err) ||
        get_optional(host, "start_us", most_us, &p->cpu_start_us, err))
        return atsi_fail_prefix(err, "host");
    return ATSI_OK;
}

static enum atsi_status read_direction(const cJSON *link, const char *field, struct atsi_profile_link *out,
                                       struct atsi_error *err) {
    const cJSON *item;
    ATSI_TRY(atsi_json_get_object(link, field, &item, err));
    if (atsi_json_get_double(item, "fixed_us", 0, most_us, &out->fixed_us, err) ||
        atsi_json_get_double(item, "bytes_per_us", least_rate, most_rate, &out->bytes_per_us, err))
        return atsi_fail_prefix(err, "%s", field);
    return ATSI_OK;
}

// Profiles of earlier versions have none.
static enum atsi_status read_contention(const cJSON *link, struct atsi_contention *out, struct atsi_error *err) {
    const cJSON *item;
    *out = ATSI_CONTENTION_DEFAULT;
    if (!cJSON_GetObjectItemCaseSensitive(link, "contention")) return ATSI_OK;
    ATSI_TRY(atsi_json_get_object(link, "contention", &item, err));
    if (atsi_json_get_double(item, "cpu_beside_link", 1, 100, &out->cpu_beside_link, err) ||
        atsi_json_get_double(item, "link_in_place", 1, 100, &out->link_in_place, err))
        return atsi_fail_prefix(err, "contention");
    out->link_beside_cpu = out->link_in_place;
    if (cJSON_GetObjectItemCaseSensitive(item, "link_beside_cpu") &&
        atsi_json_get_double(item, "link_beside_cpu", 1, 100, &out->link_beside_cpu, err))
        return atsi_fail_prefix(err, "contention");
    return ATSI_OK;
}

static enum atsi_status read_gpu(const cJSON *root, struct atsi_device_profile *p, struct atsi_error *err) {
    const cJSON *gpu, *link;
    ATSI_TRY(atsi_json_get(root, "gpu", &gpu, err));
    if (cJSON_IsNull(gpu)) return ATSI_OK;
    p->has_gpu = true;
    if (get_text(gpu, "name", p->gpu_name, sizeof p->gpu_name, err) ||
        get_text(gpu, "driver", p->driver, sizeof p->driver, err) || get_u64(gpu, "memory_bytes", &p->gpu_bytes, err) ||
        get_u64(gpu, "context_bytes", &p->context_bytes, err) ||
        get_u32(gpu, "n_copy_engines", 1, 64, &p->n_copy_engines, err) ||
        get_optional(gpu, "joined_us", most_us, &p->gpu_joined_us, err))
        return atsi_fail_prefix(err, "gpu");
    ATSI_TRY(atsi_json_get_object(root, "link", &link, err));
    if (read_direction(link, "to_device", &p->to_device, err) || read_direction(link, "to_host", &p->to_host, err) ||
        atsi_json_get_double(link, "switch_us", 0, most_us, &p->switch_us, err) ||
        read_contention(link, &p->contention, err))
        return atsi_fail_prefix(err, "link");
    return ATSI_OK;
}

static enum atsi_status read_points(const cJSON *item, struct atsi_profile_cost *cost, struct atsi_error *err) {
    const cJSON *list, *point;
    ATSI_TRY(atsi_json_get_array(item, "points", &list, err));
    int n = cJSON_GetArraySize(list);
    if (n > ATSI_PROFILE_MAX_POINTS)
        return atsi_fail(err, ATSI_BAD_INPUT, "points: %d, at most %d are read", n, ATSI_PROFILE_MAX_POINTS);
    cost->points = calloc((size_t)n + 1, sizeof *cost->points);
    if (!cost->points) return atsi_out_of_memory(err);
    cJSON_ArrayForEach(point, list) {
        struct atsi_profile_point *p = &cost->points[cost->n_points++];
        if (atsi_json_get_double(point, "bytes", 0, most_work, &p->bytes, err) ||
            atsi_json_get_double(point, "flops", 0, most_work, &p->flops, err) ||
            atsi_json_get_double(point, "us", 0, most_us, &p->us, err) ||
            atsi_json_get_double(point, "spread", 0, most_us, &p->spread, err) ||
            get_optional(point, "fixed_us", p->us, &p->fixed_us, err))
            return atsi_fail_prefix(err, "points[%u]", cost->n_points - 1);
        p->has_fixed = cJSON_GetObjectItemCaseSensitive(point, "fixed_us") != NULL;
    }
    return ATSI_OK;
}

static enum atsi_status read_op(const cJSON *item, uint32_t *op, struct atsi_error *err) {
    const char *word;
    ATSI_TRY(atsi_json_get_string(item, "op", &word, err));
    for (*op = 0; *op < ATSI_OP_KIND_LIMIT; (*op)++)
        if (!strcmp(word, atsi_op_name((enum atsi_op_kind) * op))) return ATSI_OK;
    return !strcmp(word, "any") ? ATSI_OK : atsi_fail(err, ATSI_BAD_INPUT, "op: \"%s\" is no operation", word);
}

static enum atsi_status read_dtype(const cJSON *item, uint32_t *dtype, struct atsi_error *err) {
    const char *word;
    ATSI_TRY(atsi_json_get_string(item, "dtype", &word, err));
    int found = atsi_dtype_find(word);
    *dtype = found >= 0 ? (uint32_t)found : ATSI_PROFILE_ANY_DTYPE;
    return found >= 0 || !strcmp(word, "any") ? ATSI_OK
                                              : atsi_fail(err, ATSI_BAD_INPUT, "dtype: \"%s\" is no type", word);
}

static enum atsi_status read_cost(const cJSON *item, struct atsi_profile_cost *cost, struct atsi_error *err) {
    size_t side, phase;
    ATSI_TRY(atsi_json_get_word(item, "side", side_words, 2, &side, err));
    ATSI_TRY(atsi_json_get_word(item, "phase", phase_words, 2, &phase, err));
    cost->side = (enum atsi_backend)side;
    cost->phase = (enum atsi_phase)phase;
    ATSI_TRY(read_op(item, &cost->op, err));
    ATSI_TRY(read_dtype(item, &cost->dtype, err));
    ATSI_TRY(atsi_json_get_double(item, "fixed_us", 0, most_us, &cost->fixed_us, err));
    ATSI_TRY(atsi_json_get_double(item, "bytes_per_us", least_rate, most_rate, &cost->bytes_per_us, err));
    ATSI_TRY(atsi_json_get_double(item, "flops_per_us", least_rate, most_rate, &cost->flops_per_us, err));
    return read_points(item, cost, err);
}

static bool has_fallback(const struct atsi_device_profile *p, enum atsi_backend side, enum atsi_phase phase) {
    for (uint32_t i = 0; i < p->n_costs; i++)
        if (p->costs[i].side == side && p->costs[i].phase == phase && p->costs[i].op == ATSI_PROFILE_ANY_OP &&
            p->costs[i].dtype == ATSI_PROFILE_ANY_DTYPE)
            return true;
    return false;
}

static enum atsi_status read_costs(const cJSON *root, struct atsi_device_profile *p, struct atsi_error *err) {
    const cJSON *list, *item;
    ATSI_TRY(atsi_json_get_array(root, "costs", &list, err));
    int n = cJSON_GetArraySize(list);
    if (n > ATSI_PROFILE_MAX_COSTS)
        return atsi_fail(err, ATSI_BAD_INPUT, "costs: %d, at most %d are read", n, ATSI_PROFILE_MAX_COSTS);
    p->costs = calloc((size_t)n + 1, sizeof *p->costs);
    if (!p->costs) return atsi_out_of_memory(err);
    cJSON_ArrayForEach(item, list) {
        if (read_cost(item, &p->costs[p->n_costs++], err) != ATSI_OK)
            return atsi_fail_prefix(err, "costs[%u]", p->n_costs - 1);
        if (p->costs[p->n_costs - 1].side == ATSI_GPU && !p->has_gpu)
            return atsi_fail(err, ATSI_BAD_INPUT, "costs[%u]: side gpu, but gpu is null", p->n_costs - 1);
    }
    for (int side = ATSI_CPU; side <= (p->has_gpu ? ATSI_GPU : ATSI_CPU); side++)
        for (int phase = ATSI_DECODE; phase <= ATSI_PREFILL; phase++)
            if (!has_fallback(p, (enum atsi_backend)side, (enum atsi_phase)phase))
                return atsi_fail(err, ATSI_BAD_INPUT, "costs: none for any op of any type on the %s in %s",
                                 side_words[side], phase_words[phase]);
    return ATSI_OK;
}

static enum atsi_status read_root(const cJSON *root, struct atsi_device_profile *p, struct atsi_error *err) {
    uint32_t version;
    size_t origin;
    ATSI_TRY(get_u32(root, "version", 0, UINT32_MAX, &version, err));
    if (version != ATSI_PROFILE_VERSION)
        return atsi_fail(err, ATSI_BAD_INPUT, "version: expected %d, found %u", ATSI_PROFILE_VERSION, version);
    ATSI_TRY(get_text(root, "name", p->name, sizeof p->name, err));
    ATSI_TRY(atsi_json_get_word(root, "origin", origin_words, 2, &origin, err));
    p->is_modelled = origin == 1;
    ATSI_TRY(read_sources(root, p, err));
    ATSI_TRY(read_host(root, p, err));
    ATSI_TRY(read_gpu(root, p, err));
    return read_costs(root, p, err);
}

enum atsi_status atsi_device_profile_parse(const char *json, uint64_t size, struct atsi_device_profile *profile,
                                           struct atsi_error *err) {
    cJSON *root;
    memset(profile, 0, sizeof *profile);
    ATSI_TRY(atsi_json_parse(json, size, &root, err));
    enum atsi_status status = read_root(root, profile, err);
    cJSON_Delete(root);
    return status;
}

enum atsi_status atsi_device_profile_read(const char *path, struct atsi_device_profile *profile,
                                          struct atsi_error *err) {
    cJSON *root;
    memset(profile, 0, sizeof *profile);
    ATSI_TRY(atsi_json_parse_file(path, ATSI_PROFILE_FILE_MAX, &root, err));
    enum atsi_status status = read_root(root, profile, err);
    cJSON_Delete(root);
    return status == ATSI_OK ? ATSI_OK : atsi_fail_prefix(err, "%s", path);
}

void atsi_device_profile_free(struct atsi_device_profile *profile) {
    for (uint32_t i = 0; i < profile->n_costs; i++) free(profile->costs[i].points);
    free(profile->costs);
    free(profile->sources);
    memset(profile, 0, sizeof *profile);
}

// ---- writing ------------------------------------------------------------------------------------------------------

static bool put_text(cJSON *object, const char *field, const char *text) {
    return cJSON_AddStringToObject(object, field, text) != NULL;
}

static bool put_sources(cJSON *root, const char *sources) {
    cJSON *list = cJSON_AddArrayToObject(root, "sources");
    bool good = list != NULL;
    for (const char *line = sources; good && line && *line;) {
        size_t length = strcspn(line, "\n");
        char text[1024];
        snprintf(text, sizeof text, "%.*s", (int)length, line);
        good = cJSON_AddItemToArray(list, cJSON_CreateString(text));
        line += length + (line[length] == '\n');
    }
    return good;
}

static bool put_direction(cJSON *link, const char *field, const struct atsi_profile_link *l) {
    cJSON *item = cJSON_AddObjectToObject(link, field);
    return item && atsi_json_put(item, "fixed_us", l->fixed_us) && atsi_json_put(item, "bytes_per_us", l->bytes_per_us);
}

static bool put_contention(cJSON *link, const struct atsi_contention *c) {
    cJSON *item = cJSON_AddObjectToObject(link, "contention");
    return item && atsi_json_put(item, "cpu_beside_link", c->cpu_beside_link) &&
           atsi_json_put(item, "link_in_place", c->link_in_place) &&
           atsi_json_put(item, "link_beside_cpu", c->link_beside_cpu);
}

static bool put_gpu(cJSON *root, const struct atsi_device_profile *p) {
    if (!p->has_gpu) return cJSON_AddNullToObject(root, "gpu") != NULL;
    cJSON *gpu = cJSON_AddObjectToObject(root, "gpu"), *link = cJSON_AddObjectToObject(root, "link");
    return gpu && link && put_text(gpu, "name", p->gpu_name) && put_text(gpu, "driver", p->driver) &&
           atsi_json_put(gpu, "memory_bytes", (double)p->gpu_bytes) &&
           atsi_json_put(gpu, "context_bytes", (double)p->context_bytes) &&
           atsi_json_put(gpu, "n_copy_engines", p->n_copy_engines) &&
           (p->gpu_joined_us <= 0 || atsi_json_put(gpu, "joined_us", p->gpu_joined_us)) &&
           put_direction(link, "to_device", &p->to_device) && put_direction(link, "to_host", &p->to_host) &&
           atsi_json_put(link, "switch_us", p->switch_us) && put_contention(link, &p->contention);
}

static bool put_cost(cJSON *list, const struct atsi_profile_cost *c) {
    cJSON *item = cJSON_CreateObject();
    if (!item || !cJSON_AddItemToArray(list, item)) return false;
    const char *op = c->op == ATSI_PROFILE_ANY_OP ? "any" : atsi_op_name((enum atsi_op_kind)c->op);
    const char *dtype = c->dtype == ATSI_PROFILE_ANY_DTYPE ? "any" : atsi_dtype_name(c->dtype);
    cJSON *points = NULL;
    bool good = put_text(item, "side", side_words[c->side]) && put_text(item, "op", op) &&
                put_text(item, "dtype", dtype) && put_text(item, "phase", phase_words[c->phase]) &&
                atsi_json_put(item, "fixed_us", c->fixed_us) && atsi_json_put(item, "bytes_per_us", c->bytes_per_us) &&
                atsi_json_put(item, "flops_per_us", c->flops_per_us) &&
                (points = cJSON_AddArrayToObject(item, "points"));
    for (uint32_t i = 0; good && i < c->n_points; i++) {
        cJSON *point = cJSON_CreateObject();
        good = point && cJSON_AddItemToArray(points, point) && atsi_json_put(point, "bytes", c->points[i].bytes) &&
               atsi_json_put(point, "flops", c->points[i].flops) && atsi_json_put(point, "us", c->points[i].us) &&
               atsi_json_put(point, "spread", c->points[i].spread) &&
               (!c->points[i].has_fixed || atsi_json_put(point, "fixed_us", c->points[i].fixed_us));
    }
    return good;
}

static bool put_root(cJSON *root, const struct atsi_device_profile *p) {
    cJSON *host, *costs;
    bool good = atsi_json_put(root, "version", ATSI_PROFILE_VERSION) && put_text(root, "name", p->name) &&
                put_text(root, "origin", origin_words[p->is_modelled]) && put_sources(root, p->sources) &&
                (host = cJSON_AddObjectToObject(root, "host")) && put_text(host, "cpu", p->cpu_name) &&
                atsi_json_put(host, "n_threads", p->n_threads) &&
                atsi_json_put(host, "memory_bytes", (double)p->host_bytes) &&
                (p->cpu_start_us <= 0 || atsi_json_put(host, "start_us", p->cpu_start_us)) && put_gpu(root, p) &&
                (costs = cJSON_AddArrayToObject(root, "costs"));
    for (uint32_t i = 0; good && i < p->n_costs; i++) good = put_cost(costs, &p->costs[i]);
    return good;
}

enum atsi_status atsi_device_profile_to_json(const struct atsi_device_profile *profile, char **json,
                                             struct atsi_error *err) {
    cJSON *root = cJSON_CreateObject();
    *json = root && put_root(root, profile) ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    return *json ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory while writing a device profile");
}

// ---- prices -------------------------------------------------------------------------------------------------------

static const struct atsi_profile_cost *find_cost(const struct atsi_device_profile *p, enum atsi_backend side,
                                                 uint32_t op, uint32_t dtype, enum atsi_phase phase) {
    for (uint32_t i = 0; i < p->n_costs; i++) {
        const struct atsi_profile_cost *c = &p->costs[i];
        if (c->side == side && c->op == op && c->dtype == dtype && c->phase == phase) return c;
    }
    return NULL;
}

static bool close_to(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)); }

// What a point and the work asked for differ in when they are the same operation on another number of tokens: floating-point
// operations over the same weights, or the bytes of an operation without weights. Negative: another operation.
static double tokens_axis(const struct atsi_profile_point *point, double bytes, double flops) {
    if (flops > 0) return point->flops > 0 && close_to(point->bytes, bytes) ? point->flops : -1;
    return point->flops > 0 ? -1 : point->bytes;
}

// The largest point below x and the smallest above it; NULL where there is none.
struct neighbours {
    const struct atsi_profile_point *below, *above;
    double x_below, x_above;
};

static struct neighbours find_neighbours(const struct atsi_profile_cost *c, double bytes, double flops) {
    struct neighbours n = {0};
    double x = flops > 0 ? flops : bytes;
    for (uint32_t i = 0; i < c->n_points; i++) {
        double at = tokens_axis(&c->points[i], bytes, flops);
        if (at < 0) continue;
        if (at <= x && (!n.below || at > n.x_below)) {
            n.below = &c->points[i];
            n.x_below = at;
        }
        if (at >= x && (!n.above || at < n.x_above)) {
            n.above = &c->points[i];
            n.x_above = at;
        }
    }
    return n;
}

// Between two points in proportion; beyond the last one at its own rate, less the cost's fixed part. False: no point below.
static bool price_between(const struct atsi_profile_cost *c, double bytes, double flops, double *us) {
    struct neighbours n = find_neighbours(c, bytes, flops);
    double x = flops > 0 ? flops : bytes;
    if (!n.below || n.x_below <= 0) return false;
    double slope = fmax(n.below->us - c->fixed_us, n.below->us / 2) / n.x_below;
    if (n.above && n.x_above > n.x_below) slope = (n.above->us - n.below->us) / (n.x_above - n.x_below);
    *us = n.below->us + (x - n.x_below) * slope;
    return true;
}

// The mean over the points that say it.
static double mean_fixed_us(const struct atsi_profile_cost *c) {
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_points; i++) {
        sum += c->points[i].has_fixed ? c->points[i].fixed_us : 0;
        n += c->points[i].has_fixed;
    }
    return n ? sum / n : 0;
}

bool atsi_device_profile_knows_parts(const struct atsi_device_profile *p, enum atsi_backend side) {
    for (uint32_t i = 0; i < p->n_costs; i++)
        for (uint32_t k = 0; p->costs[i].side == side && k < p->costs[i].n_points; k++)
            if (p->costs[i].points[k].has_fixed) return true;
    return false;
}

struct atsi_price atsi_device_profile_price(const struct atsi_device_profile *p, enum atsi_backend side, uint32_t op,
                                            uint32_t dtype, enum atsi_phase phase, double bytes, double flops) {
    const struct atsi_profile_cost *c = find_cost(p, side, op, dtype, phase);
    if (!c) c = find_cost(p, side, op, ATSI_PROFILE_ANY_DTYPE, phase);
    if (!c) c = find_cost(p, side, ATSI_PROFILE_ANY_OP, ATSI_PROFILE_ANY_DTYPE, phase);
    if (!c) return (struct atsi_price){.us = 0};
    struct atsi_price price = {.us = 0};
    for (uint32_t i = 0; i < c->n_points; i++)
        if (c->points[i].bytes == bytes && c->points[i].flops == flops)
            return (struct atsi_price){
                .us = c->points[i].us,
                .is_measured = !p->is_modelled,
                .alone_us = fmin(c->fixed_us, c->points[i].us),
                .fixed_us = fmin(c->points[i].has_fixed ? c->points[i].fixed_us : mean_fixed_us(c), c->points[i].us)};
    if (phase == ATSI_PREFILL && price_between(c, bytes, flops, &price.us)) return price;
    price.us = c->fixed_us + fmax(bytes / c->bytes_per_us, flops / c->flops_per_us);
    price.fixed_us = fmin(mean_fixed_us(c), price.us);
    price.alone_us = c->fixed_us;
    return price;
}
