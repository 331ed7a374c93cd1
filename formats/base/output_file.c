#include "formats/base/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/new_file.h"

struct atsi_output_file {
    FILE *stream;
    int device_fd;             // a device, a pipe or a standard stream; -1: a file of its own
    struct atsi_new_file file; // of such a one
    uint64_t size_bytes;       // written so far
    struct atsi_error failure; // the first one
    char path[];
};

static enum atsi_status cannot_write(const char *path, struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "cannot write %s: %s", path, strerror(errno));
}

static enum atsi_status write_device(struct atsi_output_file *f, const char *data, size_t size) {
    while (size) {
        ssize_t n = write(f->device_fd, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cannot_write(f->path, &f->failure);
        data += n;
        size -= (size_t)n;
    }
    return ATSI_OK;
}

// For the stream; 0: an error.
static ssize_t write_some(void *cookie, const char *data, size_t size) {
    struct atsi_output_file *f = cookie;
    if (f->failure.status != ATSI_OK) return 0;
    enum atsi_status status = f->device_fd >= 0 ? write_device(f, data, size)
                                                : atsi_new_file_write(&f->file, data, size, f->size_bytes, &f->failure);
    f->size_bytes += size;
    return status == ATSI_OK ? (ssize_t)size : 0;
}

// The number of standard output or standard error if that is the file, else -1.
static int standard_stream_of(const struct stat *st) {
    struct stat stream;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &stream) == 0 && stream.st_dev == st->st_dev && stream.st_ino == st->st_ino) return fd;
    return -1;
}

static enum atsi_status open_file(struct atsi_output_file *f, struct atsi_error *err) {
    struct stat st;
    bool exists = stat(f->path, &st) == 0;
    int stream = exists && S_ISREG(st.st_mode) ? standard_stream_of(&st) : -1;
    if (stream < 0 && (!exists || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
        return atsi_new_file_create(&f->file, f->path, err);
    f->device_fd = stream >= 0 ? fcntl(stream, F_DUPFD_CLOEXEC, 0) : open(f->path, O_WRONLY | O_CLOEXEC);
    return f->device_fd >= 0 ? ATSI_OK : cannot_write(f->path, err);
}

enum atsi_status atsi_output_file_open(struct atsi_output_file **out, const char *path, struct atsi_error *err) {
    size_t path_size = strlen(path) + 1;
    struct atsi_output_file *f = calloc(1, sizeof *f + path_size);
    *out = NULL;
    if (!f) return atsi_fail(err, ATSI_FAILED, "out of memory while opening %s", path);
    memcpy(f->path, path, path_size);
    f->device_fd = f->file.fd = -1;
    enum atsi_status status = open_file(f, err);
    if (status == ATSI_OK) {
        f->stream = fopencookie(f, "w", (cookie_io_functions_t){.write = write_some});
        if (!f->stream) status = cannot_write(path, err);
    }
    if (status == ATSI_OK)
        *out = f;
    else
        atsi_output_file_discard(f);
    return status;
}

FILE *atsi_output_file_stream(struct atsi_output_file *f) { return f->stream; }

// All that was written has reached the file, or f->failure says why not.
static enum atsi_status end_stream(struct atsi_output_file *f) {
    bool failed = ferror(f->stream) != 0;
    failed |= fclose(f->stream) != 0;
    f->stream = NULL;
    if (failed && f->failure.status == ATSI_OK) return cannot_write(f->path, &f->failure); // of the stream itself
    return f->failure.status;
}

static enum atsi_status end_device(struct atsi_output_file *f, struct atsi_error *err) {
    int fd = f->device_fd;
    f->device_fd = -1;
    return close(fd) == 0 ? ATSI_OK : cannot_write(f->path, err);
}

enum atsi_status atsi_output_file_close(struct atsi_output_file *f, struct atsi_error *err) {
    if (!f) return ATSI_OK;
    enum atsi_status status = end_stream(f);
    if (status != ATSI_OK)
        atsi_fail(err, status, "%s", f->failure.text);
    else if (f->device_fd >= 0)
        status = end_device(f, err);
    else
        status = atsi_new_file_commit(&f->file, f->size_bytes, err);
    atsi_output_file_discard(f);
    return status;
}

void atsi_output_file_discard(struct atsi_output_file *f) {
    if (!f) return;
    if (f->stream) fclose(f->stream);
    if (f->device_fd >= 0) close(f->device_fd);
    atsi_new_file_discard(&f->file);
    free(f);
}
