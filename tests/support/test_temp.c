#include "tests/support/test_temp.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

static void check(enum atsi_status status, const struct atsi_error *err) {
    if (status == ATSI_OK) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

void temp_folder(char folder[TEMP_ROOT_CAP]) {
    struct atsi_error err;
    check(atsi_temp_folder(folder, &err), &err);
}

void temp_file(char path[TEMP_ROOT_CAP]) {
    struct atsi_error err;
    check(atsi_temp_file(path, &err), &err);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

void temp_remove(const char *folder) {
    enum {
        FILES_OPEN_MAX = 16
    };
    if (nftw(folder, remove_one, FILES_OPEN_MAX, FTW_DEPTH | FTW_PHYS) == 0) return;
    perror(folder);
    exit(1);
}
