// test_temp.h: folders and files of a test's own, under $TMPDIR, else /tmp. What cannot be made or removed ends the test program.
#ifndef ATSI_TESTS_SUPPORT_TEST_TEMP_H
#define ATSI_TESTS_SUPPORT_TEST_TEMP_H

enum {
    TEMP_ROOT_CAP = 128, // of what is made here
    TEMP_PATH_CAP = 256  // of a path in such a folder
};

// A new folder, empty.
void temp_folder(char folder[TEMP_ROOT_CAP]);
// A new file, empty.
void temp_file(char path[TEMP_ROOT_CAP]);
// Removes the folder with all that is in it.
void temp_remove(const char *folder);

#endif
