// Plan files appear whole or not at all: full disks, odd targets, misuse, and a kill at any moment.
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/base/clock.h"
#include "formats/base/new_file.h"
#include "tests/support/check.h"
#include "tests/support/plan_builder.h"
#include "tests/support/test_temp.h"

static char folder[TEMP_ROOT_CAP];

static int make_folder(void **state) {
    (void)state;
    temp_folder(folder);
    return 0;
}

static int n_files(void) {
    int n = 0;
    DIR *dir = opendir(folder);
    while (readdir(dir)) n++;
    closedir(dir);
    return n - 2; // . and ..
}

static int remove_folder(void **state) {
    (void)state;
    temp_remove(folder);
    return 0;
}

static const char *in_folder(const char *name) {
    static char path[TEMP_PATH_CAP];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void test_odd_targets(void **state) {
    (void)state;
    struct atsi_error err;
    struct stat st;
    check_refused(pb_write("/dev/full", false, &err), err, "/dev/full", "no regular file");
    assert_true(stat("/dev/full", &st) == 0 && S_ISCHR(st.st_mode));
    check_refused(pb_write(folder, false, &err), err, folder, "no regular file");
    assert_int_equal(pb_write("/nonexistent/x.atsp", false, &err), ATSI_FAILED);
    check_message(err, "cannot write /nonexistent/x.atsp", "No such file");
    assert_int_equal(pb_write("/proc/x.atsp", false, &err), ATSI_FAILED);
    check_message(err, "cannot write /proc/x.atsp");
    assert_int_equal(n_files(), 0);
}

static void test_read_only_folder(void **state) {
    (void)state;
    enum {
        NOBODY = 65534
    }; // root may write anywhere: the test becomes somebody else for the moment
    struct atsi_error err;
    uid_t user = geteuid();
    assert_int_equal(chmod(folder, 0555), 0);
    if (user == 0) assert_int_equal(seteuid(NOBODY), 0);
    enum atsi_status status = pb_write(in_folder("x.atsp"), false, &err);
    if (user == 0) assert_int_equal(seteuid(user), 0);
    assert_int_equal(status, ATSI_FAILED);
    check_message(err, "cannot write", "x.atsp", "Permission denied");
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(n_files(), 0);
}

// The plan that was there stays, bit for bit, when writing its successor fails.
static void test_no_space(void **state) {
    (void)state;
    struct atsi_error err;
    struct rlimit old, limit;
    check_ok(atsi_write_file(in_folder("x.atsp"), "old", 3, &err), err);
    getrlimit(RLIMIT_FSIZE, &old);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN); // then writes past the limit fail like on a full disk
    for (rlim_t size = 0; size < 20000; size += 1000) {
        limit = (struct rlimit){size, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
        enum atsi_status status = pb_write(in_folder("x.atsp"), false, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        if (status == ATSI_OK) break;
        assert_int_equal(status, ATSI_FAILED);
        check_message(err, "cannot write", "x.atsp: File too large");
        struct bytes kept;
        assert_true(bytes_read(in_folder("x.atsp"), &kept));
        assert_int_equal(kept.size, 3);
        bytes_free(&kept);
        assert_int_equal(n_files(), 1);
    }
    signal(SIGXFSZ, handler);
    struct atsi_plan_file *file;
    check_ok(atsi_plan_file_open(&file, in_folder("x.atsp"), &err), err);
    atsi_plan_file_close(file);
}

static void test_links_and_modes(void **state) {
    (void)state;
    struct atsi_error err;
    struct stat st;
    char target[128];
    strcpy(target, in_folder("target"));
    check_ok(atsi_write_file(target, "1", 1, &err), err);
    assert_int_equal(symlink(target, in_folder("link")), 0);
    check_ok(atsi_write_file(in_folder("link"), "22", 2, &err), err);
    assert_true(lstat(in_folder("link"), &st) == 0 && S_ISLNK(st.st_mode));
    assert_true(stat(target, &st) == 0 && st.st_size == 2);
    assert_int_equal(st.st_mode & 0600, 0600);
    assert_int_equal(n_files(), 2);
    struct atsi_new_file file;
    check_ok(atsi_new_file_create(&file, target, &err), err);
    check_ok(atsi_new_file_write(&file, "x", 1, 10, &err), err);
    assert_int_equal(n_files(), file.temp_path ? 3 : 2); // where the file system has files without names
    atsi_new_file_discard(&file);
    atsi_new_file_discard(&file);
    assert_int_equal(n_files(), 2);
}

// Killed at moments spread over the time that writing takes: the final name is absent or whole.
static void test_killed(void **state) {
    (void)state;
    enum {
        N_ROUNDS = 40
    };
    struct atsi_error err;
    int n_whole = 0;
    double usual_us = 0;
    for (int round = 0; round < N_ROUNDS; round++) {
        unlink(in_folder("x.atsp"));
        double start_us = atsi_clock_us();
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) _exit(pb_write(in_folder("x.atsp"), false, &err) == ATSI_OK ? 0 : 1);
        if (round) { // the first one is left alone and timed
            usleep((useconds_t)(usual_us * 1.2 * round / N_ROUNDS));
            kill(child, SIGKILL);
        }
        waitpid(child, NULL, 0);
        if (round == 0) usual_us = atsi_clock_us() - start_us;
        struct atsi_plan_file *file;
        if (access(in_folder("x.atsp"), F_OK) != 0) continue;
        check_ok(atsi_plan_file_open(&file, in_folder("x.atsp"), &err), err);
        check_ok(atsi_plan_file_verify(file, 1, NULL, &err), err);
        atsi_plan_file_close(file);
        n_whole++;
    }
    print_message("%d of %d were finished before the kill\n", n_whole, N_ROUNDS);
    assert_true(n_whole >= 1);
}

static void test_misuse(void **state) {
    (void)state;
    struct atsi_plan_writer *w;
    struct atsi_error err;
    struct atsi_tensor t = pb_tensor("t", ATSI_F32, 4, 1, 1), bad = t;
    const char *path = in_folder("x.atsp");
    bad.size_bytes = 12;
    const float data[8] = {1, 2, 3, 4};
    for (int i = 0; i < 9; i++) {
        struct atsi_plan_writer_options options = {.no_weights = i == 7};
        check_ok(atsi_plan_writer_create(&w, path, &options, &err), err);
        enum atsi_status status = ATSI_OK;
        if (i == 0) status = atsi_plan_writer_add(w, &bad, ATSI_PLAN_PINNED, false, data, &err);
        if (i == 1) status = atsi_plan_writer_append(w, data, 4, &err);
        if (i == 2) status = atsi_plan_writer_finish(w, atsi_str_of(""), (struct atsi_str){0}, &err);
        if (i == 3) status = atsi_plan_writer_declare(w, &t, ATSI_PLAN_PINNED, &err);
        if (i >= 4 && i < 7) check_ok(atsi_plan_writer_begin(w, &t, ATSI_PLAN_PINNED, false, &err), err);
        if (i == 4) status = atsi_plan_writer_append(w, data, 20, &err);
        if (i == 5) status = atsi_plan_writer_end(w, &err);
        if (i == 6) status = atsi_plan_writer_finish(w, atsi_str_of("{}"), (struct atsi_str){0}, &err);
        if (i == 7) status = atsi_plan_writer_begin(w, &t, ATSI_PLAN_PINNED, false, &err);
        if (i == 8) {
            check_ok(atsi_plan_writer_add(w, &t, ATSI_PLAN_PINNED, false, data, &err), err);
            status = atsi_plan_writer_begin(w, &t, ATSI_PLAN_RESIDENT, false, &err);
        }
        if (status != ATSI_FAILED) fail_msg("misuse %d was accepted", i);
        check_message(err, "cannot write the plan");
        atsi_plan_writer_free(w);
    }
    struct atsi_plan_writer_options options = {.section_alignment = 3000};
    assert_int_equal(atsi_plan_writer_create(&w, path, &options, &err), ATSI_FAILED);
    atsi_plan_writer_free(NULL);
    assert_int_equal(n_files(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_odd_targets, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_read_only_folder, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_no_space, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_links_and_modes, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_killed, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_misuse, make_folder, remove_folder),
    };
    return cmocka_run_group_tests_name("plan_writer", tests, NULL, NULL);
}
