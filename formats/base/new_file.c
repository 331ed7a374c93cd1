#include "formats/base/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum atsi_status cannot_write(const char *path, struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "cannot write %s: %s", path, strerror(errno));
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// What a link points to, NULL where the path is none.
static char *target_of(const char *path) {
    char target[PATH_MAX], *joined;
    ssize_t n = readlink(path, target, sizeof target);
    if (n <= 0) return NULL;
    int folder_size = target[0] == '/' ? 0 : (int)(last_name(path) - path);
    return asprintf(&joined, "%.*s%.*s", folder_size, path, (int)n, target) < 0 ? NULL : joined;
}

// realpath needs a file at the end of the links.
static char *follow_links_to_nothing(const char *path) {
    enum {
        MAX_LINKS = 40
    }; // as in the kernel
    char *here = strdup(path);
    for (int i = 0; here && i < MAX_LINKS; i++) {
        char *next = target_of(here);
        if (!next) break;
        free(here);
        here = next;
    }
    return here;
}

// The name that the finished file gets: links are followed, so that the rename replaces or makes what they point to.
static enum atsi_status final_path(const char *path, char **out, struct atsi_error *err) {
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode))
        return atsi_fail(err, ATSI_BAD_INPUT, "cannot write %s: it is no regular file", path);
    if (!*last_name(path)) return atsi_fail(err, ATSI_BAD_INPUT, "cannot write \"%s\": it names no file", path);
    if (!exists && errno != ENOENT) return cannot_write(path, err);
    *out = exists ? realpath(path, NULL) : follow_links_to_nothing(path);
    return *out ? ATSI_OK : cannot_write(path, err);
}

// A file without a name, or false where the file system or the kernel has none. It gets its name through /proc.
static bool open_unnamed(struct atsi_new_file *file) {
    char *copy = access("/proc/self/fd", X_OK) == 0 ? strdup(file->path) : NULL;
    if (!copy) return false;
    file->fd = open(dirname(copy), O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
    free(copy);
    return file->fd >= 0;
}

static bool link_unnamed(int fd, const char *path) {
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, from, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
}

// Gives the file a name that nothing has: the open one, or without one a new file.
static enum atsi_status take_temp_name(struct atsi_new_file *file, struct atsi_error *err) {
    enum {
        MAX_TRIES = 100, // a killed program with this process's number may have left files behind
        KEPT_BYTES = 200 // of the name: with what is added it may not be longer than 255
    };
    bool unnamed = file->fd >= 0;
    size_t name_size = strlen(last_name(file->path));
    int kept_size = (int)(last_name(file->path) - file->path + (name_size < KEPT_BYTES ? name_size : KEPT_BYTES));
    for (int try = 0; try < MAX_TRIES; try++) {
        char *temp_path;
        if (asprintf(&temp_path, "%.*s.tmp%d-%d", kept_size, file->path, (int)getpid(), try) < 0)
            return atsi_out_of_memory(err);
        if (!unnamed) file->fd = open(temp_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (unnamed ? link_unnamed(file->fd, temp_path) : file->fd >= 0) {
            file->temp_path = temp_path;
            return ATSI_OK;
        }
        free(temp_path);
        if (errno != EEXIST) break;
    }
    return cannot_write(file->path, err);
}

enum atsi_status atsi_new_file_create(struct atsi_new_file *file, const char *path, struct atsi_error *err) {
    *file = (struct atsi_new_file){.fd = -1};
    enum atsi_status status = final_path(path, &file->path, err);
    if (status == ATSI_OK && !open_unnamed(file)) status = take_temp_name(file, err);
    if (status != ATSI_OK) atsi_new_file_discard(file);
    return status;
}

enum atsi_status atsi_new_file_write(struct atsi_new_file *file, const void *data, uint64_t size_bytes, uint64_t offset,
                                     struct atsi_error *err) {
    enum {
        MAX_PIECE = 1 << 30
    };
    const char *p = data;
    while (size_bytes) {
        size_t piece = size_bytes < MAX_PIECE ? (size_t)size_bytes : MAX_PIECE;
        ssize_t n = pwrite(file->fd, p, piece, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0)
            errno = ENOSPC; // POSIX does not say what a write of nothing means; waiting for more space is no answer
        if (n <= 0) return cannot_write(file->path, err);
        p += n;
        offset += (uint64_t)n;
        size_bytes -= (uint64_t)n;
    }
    return ATSI_OK;
}

// The rename is on the disk only when the folder is. Some file systems cannot flush a folder; they say EINVAL.
static enum atsi_status sync_folder(const char *path, struct atsi_error *err) {
    char *copy = strdup(path);
    if (!copy) return atsi_out_of_memory(err);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(copy);
    bool failed = fd < 0 || (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP);
    enum atsi_status status = failed ? cannot_write(path, err) : ATSI_OK;
    if (fd >= 0) close(fd);
    return status;
}

static enum atsi_status finish(struct atsi_new_file *file, uint64_t size_bytes, struct atsi_error *err) {
    if (ftruncate(file->fd, (off_t)size_bytes) != 0 || fsync(file->fd) != 0) return cannot_write(file->path, err);
    if (!file->temp_path) ATSI_TRY(take_temp_name(file, err));
    int fd = file->fd;
    file->fd = -1;
    if (close(fd) != 0 || rename(file->temp_path, file->path) != 0) return cannot_write(file->path, err);
    free(file->temp_path);
    file->temp_path = NULL;
    return sync_folder(file->path, err);
}

enum atsi_status atsi_new_file_commit(struct atsi_new_file *file, uint64_t size_bytes, struct atsi_error *err) {
    enum atsi_status status = finish(file, size_bytes, err);
    atsi_new_file_discard(file);
    return status;
}

void atsi_new_file_discard(struct atsi_new_file *file) {
    if (file->path && file->fd >= 0) close(file->fd);
    if (file->temp_path) unlink(file->temp_path);
    free(file->temp_path);
    free(file->path);
    *file = (struct atsi_new_file){.fd = -1};
}

enum atsi_status atsi_new_file_try(const char *path, struct atsi_error *err) {
    struct atsi_new_file file;
    ATSI_TRY(atsi_new_file_create(&file, path, err));
    atsi_new_file_discard(&file);
    return ATSI_OK;
}

enum atsi_status atsi_write_file(const char *path, const void *data, uint64_t size_bytes, struct atsi_error *err) {
    struct atsi_new_file file;
    ATSI_TRY(atsi_new_file_create(&file, path, err));
    enum atsi_status status = atsi_new_file_write(&file, data, size_bytes, 0, err);
    if (status == ATSI_OK) return atsi_new_file_commit(&file, size_bytes, err);
    atsi_new_file_discard(&file);
    return status;
}
