#include "formats/base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *file_kind(mode_t mode) {
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
    return "no regular file";
}

static enum atsi_status map_descriptor(struct atsi_map *map, int fd, const char *path, struct atsi_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return atsi_fail(err, ATSI_FAILED, "cannot examine %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return atsi_fail(err, ATSI_BAD_INPUT, "%s is %s: expected a regular file", path, file_kind(st.st_mode));
    if (st.st_size == 0) return ATSI_OK; // there is no such thing as an empty mapping
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return atsi_fail(err, ATSI_FAILED, "cannot map %s: %s", path, strerror(errno));
    map->data = data;
    map->size_bytes = (uint64_t)st.st_size;
    map->fd = fd;
    return ATSI_OK;
}

enum atsi_status atsi_map_open(struct atsi_map *map, const char *path, struct atsi_error *err) {
    *map = (struct atsi_map){0};
    // O_NONBLOCK: opening a pipe that nobody writes must not hang before its kind is known.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return atsi_fail(err, ATSI_BAD_INPUT, "cannot open %s: %s", path, strerror(errno));
    enum atsi_status status = map_descriptor(map, fd, path, err);
    if (map->data == NULL) close(fd);
    return status;
}

bool atsi_map_read(const struct atsi_map *map, uint64_t offset, uint64_t size_bytes, void *dst) {
    for (uint64_t done = 0; done < size_bytes;) {
        ssize_t n = pread(map->fd, (char *)dst + done, size_bytes - done, (off_t)(offset + done));
        if (n == 0 || (n < 0 && errno != EINTR)) return false;
        if (n > 0) done += (uint64_t)n;
    }
    return true;
}

void atsi_map_advise(const struct atsi_map *map, uint64_t offset, uint64_t size_bytes, enum atsi_map_advice advice) {
    static const int advices[] = {MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED};
    if (offset >= map->size_bytes) return;
    if (size_bytes > map->size_bytes - offset) size_bytes = map->size_bytes - offset;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), slack = offset % page;
    madvise((void *)(map->data + offset - slack), (size_t)(size_bytes + slack), advices[advice]);
}

void atsi_map_close(struct atsi_map *map) {
    if (map->data) {
        munmap((void *)map->data, (size_t)map->size_bytes);
        close(map->fd);
    }
    *map = (struct atsi_map){0};
}
