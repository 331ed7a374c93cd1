#include "formats/base/temp_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum atsi_status make_template(char path[ATSI_TEMP_PATH_CAP], struct atsi_error *err) {
    const char *root = getenv("TMPDIR");
    int n = snprintf(path, ATSI_TEMP_PATH_CAP, "%s/atsi-XXXXXX", root && *root ? root : "/tmp");
    if (n < ATSI_TEMP_PATH_CAP) return ATSI_OK;
    return atsi_fail(err, ATSI_FAILED, "TMPDIR is too long, name a shorter folder: %s", root);
}

static enum atsi_status cannot_make(const char *path, struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "cannot make %s: %s; TMPDIR names another folder", path, strerror(errno));
}

enum atsi_status atsi_temp_file(char path[ATSI_TEMP_PATH_CAP], struct atsi_error *err) {
    ATSI_TRY(make_template(path, err));
    int fd = mkstemp(path);
    if (fd < 0) return cannot_make(path, err);
    close(fd);
    return ATSI_OK;
}

enum atsi_status atsi_temp_folder(char path[ATSI_TEMP_PATH_CAP], struct atsi_error *err) {
    ATSI_TRY(make_template(path, err));
    return mkdtemp(path) ? ATSI_OK : cannot_make(path, err);
}
