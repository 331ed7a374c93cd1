// Files that are written while a program runs: complete or not there, and what cannot be written is told with its cause.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/new_file.h"
#include "formats/base/output_file.h"
#include "tests/support/bytes.h"
#include "tests/support/check.h"
#include "tests/support/test_temp.h"

static char folder[TEMP_ROOT_CAP], path[TEMP_PATH_CAP];

static int set_up(void **state) {
    (void)state;
    struct atsi_error err;
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/out", folder);
    return atsi_write_file(path, "older", 5, &err);
}

static int tear_down(void **state) {
    (void)state;
    temp_remove(folder);
    return 0;
}

static void check_holds(const char *text) {
    struct bytes is;
    assert_true(bytes_read(path, &is));
    assert_int_equal(is.size, strlen(text));
    assert_memory_equal(is.data, text, is.size);
    bytes_free(&is);
}

// More than a stream's buffer, so that not all of it is written at the end.
static void put_much(struct atsi_output_file *file) {
    for (int i = 0; i < 10000; i++) fprintf(atsi_output_file_stream(file), "%8d\n", i);
}

static void a_file_appears_when_it_is_closed(void **state) {
    (void)state;
    struct atsi_output_file *file;
    struct atsi_error err;
    struct stat st;
    check_ok(atsi_output_file_open(&file, path, &err), err);
    put_much(file);
    fflush(atsi_output_file_stream(file));
    check_holds("older");
    check_ok(atsi_output_file_close(file, &err), err);
    assert_true(stat(path, &st) == 0 && st.st_size == 90000);
    check_ok(atsi_output_file_open(&file, path, &err), err);
    fputs("new", atsi_output_file_stream(file));
    check_ok(atsi_output_file_close(file, &err), err);
    check_holds("new");
    check_ok(atsi_output_file_close(NULL, &err), err);
}

static void one_that_is_not_wanted_leaves_the_older(void **state) {
    (void)state;
    struct atsi_output_file *file;
    struct atsi_error err;
    check_ok(atsi_output_file_open(&file, path, &err), err);
    put_much(file);
    atsi_output_file_discard(file);
    atsi_output_file_discard(NULL);
    check_holds("older");
    unlink(path);
    assert_int_equal(rmdir(folder), 0); // nothing else was left
    mkdir(folder, 0700);
}

// Wherever it happens: in the first bytes, while writing, at the end.
static void no_space_is_told_and_leaves_the_older(void **state) {
    (void)state;
    struct atsi_output_file *file;
    struct atsi_error err;
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN); // then writes past the limit fail like on a full disk
    for (rlim_t size = 0; size < 90000; size += 29999) {
        check_ok(atsi_output_file_open(&file, path, &err), err);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){size, old.rlim_max});
        put_much(file);
        enum atsi_status status = atsi_output_file_close(file, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        assert_int_equal(status, ATSI_FAILED);
        check_message(err, "cannot write", path, "File too large");
        check_holds("older");
    }
    signal(SIGXFSZ, handler);
}

static void devices_and_pipes_are_written_as_they_are(void **state) {
    (void)state;
    struct atsi_output_file *file;
    struct atsi_error err;
    char got[8];
    check_ok(atsi_output_file_open(&file, "/dev/full", &err), err);
    put_much(file);
    assert_int_equal(atsi_output_file_close(file, &err), ATSI_FAILED);
    check_message(err, "cannot write /dev/full: No space left on device");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    check_ok(atsi_output_file_open(&file, path, &err), err);
    fputs("now", atsi_output_file_stream(file));
    fflush(atsi_output_file_stream(file));
    assert_int_equal(read(reader, got, sizeof got), 3);
    check_ok(atsi_output_file_close(file, &err), err);
    assert_int_equal(read(reader, got, sizeof got), 0);
    close(reader);
}

// Standard output goes to a file that is opened by name as well: what stands there stays, and what comes later follows.
static void a_file_of_standard_output_is_written_behind_what_it_holds(void **state) {
    (void)state;
    struct atsi_output_file *file;
    struct atsi_error err;
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), fd = open(path, O_WRONLY | O_APPEND);
    dup2(fd, STDOUT_FILENO);
    enum atsi_status status = atsi_output_file_open(&file, path, &err);
    if (status == ATSI_OK) {
        fputs(" newer", atsi_output_file_stream(file));
        status = atsi_output_file_close(file, &err);
    }
    ssize_t n_written = write(STDOUT_FILENO, " newest", 7);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    close(fd);
    check_ok(status, err);
    assert_int_equal(n_written, 7);
    check_holds("older newer newest");
}

static void write_new(const char *name) {
    struct atsi_error err;
    check_ok(atsi_write_file(name, "new", 3, &err), err);
}

// A link stays a link, also where nothing stands yet where it leads; one that leads to itself is told.
static void links_are_followed(void **state) {
    (void)state;
    char link[TEMP_PATH_CAP], farther[TEMP_PATH_CAP];
    struct atsi_error err;
    struct stat st;
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(farther, sizeof farther, "%s/farther", folder);
    assert_int_equal(symlink("out", link), 0);
    assert_int_equal(symlink(link, farther), 0);
    for (int run = 0; run < 2; run++) {
        write_new(farther);
        check_holds("new");
        assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode) && lstat(farther, &st) == 0 && S_ISLNK(st.st_mode));
        unlink(path);
    }
    unlink(link);
    assert_int_equal(symlink("farther", link), 0);
    assert_int_equal(atsi_write_file(link, "new", 3, &err), ATSI_FAILED);
    check_message(err, "cannot write", link, "symbolic links");
}

// Told at once, not after hours of work.
static void names_that_no_file_can_have_are_told_when_it_is_opened(void **state) {
    (void)state;
    char name[600];
    struct atsi_error err;
    snprintf(name, sizeof name, "%s/nothing/", folder);
    check_refused(atsi_new_file_try(name, &err), err, name, "names no file");
    check_refused(atsi_new_file_try("", &err), err, "names no file");
    snprintf(name, sizeof name, "%s/%0256d", folder, 0);
    assert_int_equal(atsi_new_file_try(name, &err), ATSI_FAILED);
    check_message(err, "cannot write", "too long");
    name[strlen(name) - 1] = 0; // the longest that there is, with nothing added
    write_new(name);
    write_new(name);
}

static void what_cannot_be_opened_is_told(void **state) {
    (void)state;
    struct atsi_output_file *file;
    struct atsi_error err;
    check_refused(atsi_output_file_open(&file, folder, &err), err, folder, "no regular file");
    assert_null(file);
    assert_int_equal(atsi_output_file_open(&file, "/nowhere/x", &err), ATSI_FAILED);
    check_message(err, "cannot write /nowhere/x: No such file");
    assert_null(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_appears_when_it_is_closed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_is_not_wanted_leaves_the_older, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_space_is_told_and_leaves_the_older, set_up, tear_down),
        cmocka_unit_test_setup_teardown(devices_and_pipes_are_written_as_they_are, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_of_standard_output_is_written_behind_what_it_holds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(links_are_followed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(names_that_no_file_can_have_are_told_when_it_is_opened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_cannot_be_opened_is_told, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("output_file", tests, NULL, NULL);
}
