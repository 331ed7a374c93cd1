// Broken models and plans given to the programs themselves: exit code 2, one printable line that names the file and the
// fault, at once, in little memory, and nothing left behind. The readers' own tests have many more cases.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/plan_builder.h"
#include "tests/support/test_temp.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum {
    MAX_RSS_KIB = 1 << 20,
    MAX_CPU_MS = 20000
}; // the sanitizers' own needs
#else
enum {
    MAX_RSS_KIB = 64 << 10,
    MAX_CPU_MS = 1000
};
#endif

static char folder[TEMP_ROOT_CAP];

static int make_folder(void **state) {
    (void)state;
    temp_folder(folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder); // fails when a program left something
}

static const char *program_path(const char *name) {
    static char path[512];
    const char *build = getenv("B");
    snprintf(path, sizeof path, "%s/%s", build ? build : "build", name);
    return path;
}

static void skip_without(const char *program) {
    if (access(program_path(program), X_OK) == 0) return;
    print_message("skipped: %s is not built\n", program_path(program));
    skip();
}

// What a program that was run did.
struct outcome {
    int status;
    long rss_kib, cpu_ms;
    char log[4096]; // standard error
};

static void read_log(const char *path, struct outcome *outcome) {
    struct bytes log;
    assert_true(bytes_read(path, &log));
    snprintf(outcome->log, sizeof outcome->log, "%.*s", (int)log.size, log.size ? (const char *)log.data : "");
    bytes_free(&log);
    unlink(path);
}

static struct outcome run(const char *const arguments[]) {
    struct outcome outcome = {0};
    struct rusage usage;
    char log_path[TEMP_PATH_CAP];
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600), null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(log, 2);
        alarm(60);
        execv(program_path(arguments[0]), (char *const *)arguments);
        _exit(127);
    }
    assert_int_equal(wait4(child, &outcome.status, 0, &usage), child);
    outcome.rss_kib = usage.ru_maxrss;
    outcome.cpu_ms = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
                     (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
    read_log(log_path, &outcome);
    return outcome;
}

static void check_outcome(const char *what, const struct outcome *o, const char *word) {
    if (!WIFEXITED(o->status) || WEXITSTATUS(o->status) != 2)
        fail_msg("%s: wait status %#x, expected exit code 2: %s", what, (unsigned)o->status, o->log);
    const char *end = strchr(o->log, '\n');
    if (!end || end[1]) fail_msg("%s: expected one line, found: %s", what, o->log);
    for (const char *c = o->log; c < end; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F) fail_msg("%s: a control character in the message", what);
    if (!strstr(o->log, "bad.")) fail_msg("%s: the file is not named: %s", what, o->log);
    if (!strstr(o->log, word)) fail_msg("%s: no \"%s\" in: %s", what, word, o->log);
    if (o->rss_kib > MAX_RSS_KIB) fail_msg("%s: took %ld KiB", what, o->rss_kib);
    if (o->cpu_ms > MAX_CPU_MS) fail_msg("%s: took %ld ms", what, o->cpu_ms);
}

// ---- models ------------------------------------------------------------------------------------------------------

static void check_model(const char *what, const struct bytes *file, const char *word) {
    char model[TEMP_PATH_CAP], plan[TEMP_PATH_CAP];
    snprintf(model, sizeof model, "%s/bad.gguf", folder);
    snprintf(plan, sizeof plan, "%s/out.atsp", folder);
    bytes_write(file, folder, "bad.gguf");
    struct outcome o = run((const char *const[]){"atsi-plan", model, "--vram", "0", "-o", plan, NULL});
    check_outcome(what, &o, word);
    assert_int_not_equal(access(plan, F_OK), 0);
    unlink(model);
}

static void check_built(const char *what, struct gguf_builder *g, const char *word) {
    struct bytes file = gb_finish(g);
    gb_free(g);
    check_model(what, &file, word);
    bytes_free(&file);
}

static void test_truncated_models(void **state) {
    (void)state;
    skip_without("atsi-plan");
    struct gguf_builder g;
    gb_base(&g);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    static const size_t sizes[] = {0, 3, 4, 8, 23, 24, 60, 500, 900, 1000, 1100};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct bytes cut = bytes_exact(&file, sizes[i]);
        check_model("truncated model", &cut, sizes[i] < 900 ? "truncated" : "missing");
        bytes_free(&cut);
    }
    bytes_free(&file);
}

static void test_claims(void **state) {
    (void)state;
    skip_without("atsi-plan");
    struct gguf_builder g;
    gb_base(&g);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    for (unsigned f = 0; f < g.n_fields; f += 5) {
        struct bytes bad = bytes_exact(&file, file.size);
        bytes_set_le(&bad, g.fields[f].offset, UINT64_C(1) << (f % 2 ? 30 : 62), g.fields[f].size);
        if (memcmp(bad.data, file.data, file.size) != 0) check_model("claim", &bad, "offset");
        bytes_free(&bad);
    }
    bytes_free(&file);
}

static void test_bad_models(void **state) {
    (void)state;
    skip_without("atsi-plan");
    struct gguf_builder g;
    gb_base(&g);
    g.version = 0x03000000;
    check_built("big-endian", &g, "big-endian");
    gb_base(&g);
    gb_int(&g, "general.alignment", GB_U32, 3);
    check_built("alignment 3", &g, "general.alignment");
    gb_base(&g);
    gb_str(&g, "general.name", "twice");
    check_built("duplicate key", &g, "general.name");
    gb_base(&g);
    gb_tensor(&g, "output_norm.weight", 0, 1, (const uint64_t[]){8}, 32, 1);
    check_built("duplicate tensor", &g, "output_norm.weight");
    gb_base(&g);
    gb_tensor_info(&g, "w\x1b[2J\n", 6, 31, 1, (const uint64_t[]){32}, 0);
    check_built("withdrawn type in a hostile name", &g, "type 31");
    gb_base(&g);
    gb_tensor_info(&g, "flat", 4, 0, 2, (const uint64_t[]){8, 0}, 0);
    check_built("dimension 0", &g, "flat");
    gb_base(&g);
    gb_tensor_info(&g, "huge", 4, 0, 2, (const uint64_t[]){UINT64_C(1) << 33, UINT64_C(1) << 31}, 0);
    check_built("product that wraps", &g, "huge");
    gb_base(&g);
    gb_int(&g, "split.count", GB_U16, 2);
    check_built("part under another name", &g, "part 1 of 2");
}

// ---- plans -------------------------------------------------------------------------------------------------------

static void check_plan(const char *what, const struct bytes *file, const char *word) {
    char plan[TEMP_PATH_CAP];
    snprintf(plan, sizeof plan, "%s/bad.atsp", folder);
    bytes_write(file, folder, "bad.atsp");
    const char *const commands[][8] = {{"atsi-run", plan, "--device", "cpu", "-p", "x", NULL},
                                       {"atsi-plan", "--info", plan, NULL},
                                       {"atsi-plan", "--verify", plan, NULL}};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        struct outcome o = run(commands[i]);
        check_outcome(what, &o, word);
    }
    unlink(plan);
}

static void test_bad_plans(void **state) {
    (void)state;
    skip_without("atsi-plan");
    skip_without("atsi-run");
    struct bytes plan = pb_plan(false);
    static const size_t sizes[] = {0, 7, 8, 4095, 4096, 5000, 9000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct bytes cut = bytes_exact(&plan, sizes[i]);
        check_plan("truncated plan", &cut, "truncated");
        bytes_free(&cut);
    }
    static const struct {
        size_t offset;
        uint64_t value;
        unsigned size;
        const char *word;
    } patches[] = {{PB_AT_VERSION, 9, 4, "version"},
                   {PB_AT_N_BLOBS, UINT32_MAX, 4, "tensor index"},
                   {PB_AT_PARTS, UINT64_MAX - 63, 8, "manifest"},
                   {PB_AT_PARTS + 16, UINT64_C(1) << 40, 8, "manifest"},
                   {PB_AT_PARTS + PB_PART_BYTES + 8, UINT64_C(1) << 62, 8, "tensor index"}};
    for (size_t i = 0; i < sizeof patches / sizeof *patches; i++) {
        struct bytes bad = bytes_exact(&plan, plan.size);
        bytes_set_le(&bad, patches[i].offset, patches[i].value, patches[i].size);
        pb_fix_checksums(&bad);
        check_plan("patched plan", &bad, patches[i].word);
        bytes_free(&bad);
    }
    check_plan("a manifest that is none", &plan, "manifest"); // the container is sound, its text is not a plan
    bytes_free(&plan);
    struct gguf_builder g;
    gb_base(&g);
    struct bytes model = gb_finish(&g);
    gb_free(&g);
    check_plan("a model instead of a plan", &model, "no plan file");
    bytes_free(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_truncated_models, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_claims, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_bad_models, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_bad_plans, make_folder, remove_folder),
    };
    return cmocka_run_group_tests_name("hostile_programs", tests, NULL, NULL);
}
