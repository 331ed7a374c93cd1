#include "formats/base/cache_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/base/new_file.h"

char *atsi_cache_path(const char *name) {
    char *path;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *between = "/atsi";
    if (!cache || cache[0] != '/') { // the specification ignores relative paths
        if (!home || home[0] != '/') return NULL;
        cache = home;
        between = "/.cache/atsi";
    }
    return asprintf(&path, "%s%s/%s", cache, between, name) < 0 ? NULL : path;
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

enum atsi_status atsi_cache_write(const char *path, const void *data, uint64_t size_bytes, struct atsi_error *err) {
    char *folders = strdup(path);
    enum atsi_status status = folders ? make_folders(folders, err) : atsi_fail(err, ATSI_FAILED, "out of memory");
    free(folders);
    return status == ATSI_OK ? atsi_write_file(path, data, size_bytes, err) : status;
}
