#include "formats/base/cache_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

// The folder itself is locked, so that no further file is left in it.
int atsi_cache_lock(const char *path) {
    const struct timespec pause = {0, 10 * 1000 * 1000};
    int tries = 500, fd = -1;
    char *folder = strdup(path), *name = folder ? strrchr(folder, '/') : NULL;
    if (name && make_folders(folder, NULL) == ATSI_OK) {
        name[1] = 0;
        fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    free(folder);
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if ((errno == EWOULDBLOCK || errno == EINTR) && --tries > 0) {
            nanosleep(&pause, NULL);
        } else {
            close(fd);
            fd = -1;
        }
    }
    return fd;
}

void atsi_cache_unlock(int lock) {
    if (lock >= 0) close(lock);
}

enum atsi_status atsi_cache_write(const char *path, const void *data, uint64_t size_bytes, struct atsi_error *err) {
    char *folders = strdup(path);
    enum atsi_status status = folders ? make_folders(folders, err) : atsi_out_of_memory(err);
    free(folders);
    return status == ATSI_OK ? atsi_write_file(path, data, size_bytes, err) : status;
}
