// new_file.h: files that appear complete or not at all.
//
// Bytes go to a file in the same folder that has no name yet (where the file system offers that; else "NAME.tmp<pid>-<n>"); committing
// flushes it to the disk, gives it that temporary name, renames it over the final one and flushes the folder. Until then an older
// file of that name stays as it is. A program that is killed leaves no part under the final name, and nothing at all while the
// file has no name.
#ifndef ATSI_FORMATS_BASE_NEW_FILE_H
#define ATSI_FORMATS_BASE_NEW_FILE_H

#include <stdint.h>

#include "formats/base/error.h"

struct atsi_new_file {
    int fd;
    char *path;      // final name, links followed to where they point
    char *temp_path; // NULL while the file has no name
};

// Anything but a regular file under the final name is refused (ATSI_BAD_INPUT), so that no device or folder is replaced, and so is a name that
// no file can have.
enum atsi_status atsi_new_file_create(struct atsi_new_file *file, const char *path, struct atsi_error *err);
// Writes at any offset; what lies between is zero.
enum atsi_status atsi_new_file_write(struct atsi_new_file *file, const void *data, uint64_t size_bytes, uint64_t offset,
                                     struct atsi_error *err);
// Ends the file at `size_bytes` and gives it its name. On failure the temporary file is gone.
enum atsi_status atsi_new_file_commit(struct atsi_new_file *file, uint64_t size_bytes, struct atsi_error *err);
// Removes the temporary file; fine after a commit, a failure or on a zeroed struct.
void atsi_new_file_discard(struct atsi_new_file *file);

// Whether a file could be created there now, so that long work is not done in vain. Nothing stays behind.
enum atsi_status atsi_new_file_try(const char *path, struct atsi_error *err);

// All of it for a file that is in memory.
enum atsi_status atsi_write_file(const char *path, const void *data, uint64_t size_bytes, struct atsi_error *err);

#endif
