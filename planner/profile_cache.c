#include "planner/profile_cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/base/hash.h"
#include "formats/base/new_file.h"
#include "formats/version.h"

char *atsi_profile_cache_path(const struct atsi_device_profile *p) {
    char key[1024], *path;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *between = "/atsi";
    if (!cache || cache[0] != '/') { // the specification ignores relative paths
        if (!home || home[0] != '/') return NULL;
        cache = home;
        between = "/.cache/atsi";
    }
    int n =
        snprintf(key, sizeof key, "%s|%s|%s|%u|%s", p->cpu_name, p->gpu_name, p->driver, p->n_threads, ATSI_VERSION);
    uint64_t hash = atsi_hash(key, (uint64_t)n < sizeof key ? (uint64_t)n : sizeof key);
    return asprintf(&path, "%s%s/profile-%016llx.json", cache, between, (unsigned long long)hash) < 0 ? NULL : path;
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

// Every folder on the way to the file.
static enum atsi_status make_folders(char *path, struct atsi_error *err) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int made = mkdir(path, 0755), why = errno;
        if (made != 0 && why != EEXIST) {
            enum atsi_status status = atsi_fail(err, ATSI_FAILED, "%s: %s", path, strerror(why));
            *slash = '/';
            return status;
        }
        *slash = '/';
    }
    return ATSI_OK;
}

enum atsi_status atsi_profile_save(const char *path, const struct atsi_device_profile *profile,
                                   struct atsi_error *err) {
    char *json = NULL;
    enum atsi_status status = atsi_device_profile_to_json(profile, &json, err);
    if (status == ATSI_OK) status = atsi_write_file(path, json, strlen(json), err);
    free(json);
    return status;
}

enum atsi_status atsi_profile_cache_save(const char *path, const struct atsi_device_profile *profile,
                                         struct atsi_error *err) {
    char *folders = strdup(path);
    enum atsi_status status = folders ? make_folders(folders, err) : atsi_fail(err, ATSI_FAILED, "out of memory");
    free(folders);
    return status == ATSI_OK ? atsi_profile_save(path, profile, err) : status;
}
