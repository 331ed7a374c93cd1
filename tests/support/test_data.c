#include "tests/support/test_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "tests/support/check.h"

static const char *folder(void) {
    const char *data = getenv("ATSI_TEST_DATA");
    return data ? data : "../shared";
}

static void unpack(struct bytes *b) {
    unsigned long long size = ZSTD_getFrameContentSize(b->data, b->size);
    assert_true(size != ZSTD_CONTENTSIZE_ERROR && size != ZSTD_CONTENTSIZE_UNKNOWN);
    struct bytes unpacked = {0};
    bytes_fill(&unpacked, 0, size);
    assert_int_equal(ZSTD_decompress(unpacked.data, size, b->data, b->size), size);
    bytes_free(b);
    *b = unpacked;
}

bool test_data_read(const char *path, struct bytes *out) {
    char full[1024];
    snprintf(full, sizeof full, "%s/%s", folder(), path);
    if (!bytes_read(full, out)) return false;
    size_t length = strlen(path);
    if (length > 4 && strcmp(path + length - 4, ".zst") == 0) unpack(out);
    return true;
}

bool test_data_unpack(const char *path, const char *into) {
    char archive[1024], command[2048];
    snprintf(archive, sizeof archive, "%s/%s", folder(), path);
    if (access(archive, R_OK) != 0) return false;
    snprintf(command, sizeof command, "tar -C '%s' -I zstd -xf '%s'", into, archive);
    assert_int_equal(system(command), 0);
    return true;
}

_Noreturn void test_data_skip(const char *path) {
    print_message("skipped: no %s in %s\n", path, folder());
    _skip(__FILE__, __LINE__);
    abort(); // _skip does not return
}
