// test_temp.h: folders and files of a test's own (formats/base/temp_file.h). What cannot be made or removed ends the test program.
#ifndef ATSI_TESTS_SUPPORT_TEST_TEMP_H
#define ATSI_TESTS_SUPPORT_TEST_TEMP_H

#include "formats/base/temp_file.h"

enum {
    TEMP_ROOT_CAP = ATSI_TEMP_PATH_CAP, // of what is made here
    TEMP_PATH_CAP = 256                 // of a path in such a folder
};

// A new folder, empty.
void temp_folder(char folder[TEMP_ROOT_CAP]);
// A new file, empty.
void temp_file(char path[TEMP_ROOT_CAP]);
// Removes the folder with all that is in it.
void temp_remove(const char *folder);

#endif
