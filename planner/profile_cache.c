#include "planner/profile_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/cache_folder.h"
#include "formats/base/hash.h"
#include "formats/base/new_file.h"
#include "formats/version.h"

char *atsi_profile_cache_path(const struct atsi_device_profile *p) {
    char key[1024], name[64];
    int n =
        snprintf(key, sizeof key, "%s|%s|%s|%u|%s", p->cpu_name, p->gpu_name, p->driver, p->n_threads, ATSI_VERSION);
    uint64_t hash = atsi_hash(key, (uint64_t)n < sizeof key ? (uint64_t)n : sizeof key);
    snprintf(name, sizeof name, "profile-%016llx.json", (unsigned long long)hash);
    return atsi_cache_path(name);
}

void atsi_profile_cache_load(const char *path, struct atsi_device_profile *profile) {
    struct atsi_device_profile stored;
    struct atsi_error ignored;
    bool good = atsi_device_profile_read(path, &stored, &ignored) == ATSI_OK && !strcmp(stored.name, profile->name) &&
                stored.has_gpu == profile->has_gpu && stored.gpu_bytes == profile->gpu_bytes;
    if (!good) {
        atsi_device_profile_free(&stored);
        return;
    }
    atsi_device_profile_free(profile);
    *profile = stored;
}

// As JSON, by either of the two writers.
static enum atsi_status save(const char *path, const struct atsi_device_profile *profile,
                             enum atsi_status write(const char *, const void *, uint64_t, struct atsi_error *),
                             struct atsi_error *err) {
    char *json = NULL;
    enum atsi_status status = atsi_device_profile_to_json(profile, &json, err);
    if (status == ATSI_OK) status = write(path, json, strlen(json), err);
    free(json);
    return status;
}

enum atsi_status atsi_profile_save(const char *path, const struct atsi_device_profile *profile,
                                   struct atsi_error *err) {
    return save(path, profile, atsi_write_file, err);
}

enum atsi_status atsi_profile_cache_save(const char *path, const struct atsi_device_profile *profile,
                                         struct atsi_error *err) {
    return save(path, profile, atsi_cache_write, err);
}
