// test_data.h: files of $ATSI_TEST_DATA (else ../shared), which are not part of the repository.
#ifndef ATSI_TESTS_SUPPORT_TEST_DATA_H
#define ATSI_TESTS_SUPPORT_TEST_DATA_H

#include <stdbool.h>

#include "tests/support/bytes.h"

// Reads a file by its path in the data folder, and unpacks it when it ends in .zst. False when it is not there.
bool test_data_read(const char *path, struct bytes *out);

// Unpacks an archive (.tar.zst) of the data folder into `into`. False when it is not there; one that is damaged fails the test.
bool test_data_unpack(const char *path, const char *into);

// Ends the running test as skipped, saying which file is missing.
_Noreturn void test_data_skip(const char *path);

#endif
