#include "tests/support/test_temp.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(int result, const char *path) {
    if (result >= 0) return;
    perror(path);
    exit(1);
}

static void make_template(char path[TEMP_ROOT_CAP]) {
    const char *root = getenv("TMPDIR");
    int n = snprintf(path, TEMP_ROOT_CAP, "%s/atsi-test-XXXXXX", root && *root ? root : "/tmp");
    if (n < TEMP_ROOT_CAP) return;
    fprintf(stderr, "TMPDIR is too long: %s\n", root);
    exit(1);
}

void temp_folder(char folder[TEMP_ROOT_CAP]) {
    make_template(folder);
    check(mkdtemp(folder) ? 0 : -1, folder);
}

void temp_file(char path[TEMP_ROOT_CAP]) {
    make_template(path);
    int fd = mkstemp(path);
    check(fd, path);
    close(fd);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    check(remove(path), path);
    return 0;
}

void temp_remove(const char *folder) {
    enum {
        FILES_OPEN_MAX = 16
    };
    check(nftw(folder, remove_one, FILES_OPEN_MAX, FTW_DEPTH | FTW_PHYS), folder);
}
