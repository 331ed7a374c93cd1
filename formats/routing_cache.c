#include "formats/routing_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/base/cache_folder.h"

char *atsi_routing_cache_path(uint64_t gguf_hash) {
    char name[64];
    snprintf(name, sizeof name, "routing-%016llx.json", (unsigned long long)gguf_hash);
    return atsi_cache_path(name);
}

bool atsi_routing_cache_load(const char *path, const struct atsi_program *p, struct atsi_routing_stats *out,
                             struct atsi_error *why) {
    *why = (struct atsi_error){0};
    *out = (struct atsi_routing_stats){0};
    if (access(path, F_OK) != 0 || atsi_routing_read(path, out, why) != ATSI_OK) return false;
    if (atsi_routing_check(out, p, why) == ATSI_OK) return true;
    atsi_fail_prefix(why, "%s", path);
    return false;
}

static enum atsi_status add(const char *path, const struct atsi_program *p, const struct atsi_routing_stats *counted,
                            struct atsi_error *err) {
    struct atsi_routing_stats all;
    struct atsi_error unsound;
    char *json = NULL;
    const struct atsi_routing_stats *kept = counted;
    if (atsi_routing_cache_load(path, p, &all, &unsound)) {
        atsi_routing_add(&all, counted);
        kept = &all;
    }
    enum atsi_status status = atsi_routing_to_json(kept, &json, err);
    if (status == ATSI_OK) status = atsi_cache_write(path, json, strlen(json), err);
    free(json);
    atsi_routing_stats_free(&all);
    return status;
}

enum atsi_status atsi_routing_cache_add(const char *path, const struct atsi_program *p,
                                        const struct atsi_routing_stats *counted, struct atsi_error *err) {
    int lock = atsi_cache_lock(path);
    enum atsi_status status = add(path, p, counted, err);
    atsi_cache_unlock(lock);
    return status;
}
