#include "planner/schedule_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "planner/solve/instance_fields.h"
#include "runtime/schedule/schedule.h"

struct round_file {
    struct atsi_schedule_instance instance;
    struct atsi_schedule_unit *units; // owned
    enum atsi_schedule_policy policy;
};

// "start", "previous" or the index of an earlier unit.
static enum atsi_status read_after(const cJSON *object, size_t i, int32_t *out, struct atsi_error *err) {
    static const char *const words[] = {"start", "previous"};
    const cJSON *item = NULL;
    ATSI_TRY(atsi_json_get(object, "after", &item, err));
    if (cJSON_IsString(item)) {
        size_t word = 0;
        ATSI_TRY(atsi_json_get_word(object, "after", words, 2, &word, err));
        *out = word == 0 ? ATSI_AFTER_START : ATSI_AFTER_PREVIOUS;
        return ATSI_OK;
    }
    if (!atsi_json_is_integer(item) || item->valuedouble < 0 || item->valuedouble >= (double)i)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "field \"after\" must be \"start\", \"previous\" or the index of an earlier unit");
    *out = (int32_t)item->valuedouble;
    return ATSI_OK;
}

static enum atsi_status read_unit(const cJSON *object, size_t i, void *out, struct atsi_error *err) {
    static const char *const sides[] = {"cpu", "gpu"};
    struct atsi_schedule_unit *unit = out;
    struct atsi_instance_unit u;
    size_t home = 0;
    ATSI_TRY(atsi_instance_unit(object, &u, err));
    ATSI_TRY(atsi_json_get_word(object, "default", sides, 2, &home, err));
    *unit = (struct atsi_schedule_unit){.size_bytes = u.size_bytes,
                                        .t_cpu_us = u.t_cpu_us,
                                        .t_gpu_us = u.t_gpu_us,
                                        .switch_us = u.switch_us,
                                        .home = (enum atsi_backend)home};
    ATSI_TRY(atsi_instance_time(object, "transfer_us", &unit->transfer_us, err));
    return read_after(object, i, &unit->after, err);
}

static enum atsi_status read_tree(const cJSON *tree, void *out, struct atsi_error *err) {
    static const char *const policies[] = {"none", "paper", "fifo"}; // in the order of enum atsi_schedule_policy
    struct round_file *file = out;
    size_t policy = 0;
    void *units = NULL;
    ATSI_TRY(atsi_instance_size(tree, "temp_bytes", 0, &file->instance.temp_bytes, err));
    ATSI_TRY(atsi_json_get_word(tree, "policy", policies, 3, &policy, err));
    file->policy = (enum atsi_schedule_policy)policy;
    enum atsi_status status =
        atsi_instance_units(tree, sizeof *file->units, read_unit, &units, &file->instance.n_units, err);
    file->instance.units = file->units = units;
    return status;
}

static void print_units(const struct atsi_schedule *schedule, size_t n, FILE *out) {
    fprintf(out, ",\"units\":[");
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s{\"start_us\":%.17g,\"end_us\":%.17g}", i ? "," : "", schedule->timing.start_us[i],
                schedule->timing.end_us[i]);
    fprintf(out, "]");
}

static void print_transfers(const struct round_file *file, const struct atsi_schedule *schedule, FILE *out) {
    const struct atsi_schedule_timing *t = &schedule->timing;
    const char *comma = "";
    fprintf(out, ",\"transfers\":[");
    for (size_t i = 0; i < file->instance.n_units; i++) {
        if (file->units[i].home == ATSI_GPU || schedule->assignment[i] == ATSI_CPU) continue;
        fprintf(out, "%s{\"unit\":%zu,\"start_us\":%.17g,\"end_us\":%.17g,\"exposed_us\":%.17g}", comma, i,
                t->transfer_start_us[i], t->transfer_end_us[i], t->exposed_us[i]);
        comma = ",";
    }
    fprintf(out, "]");
}

static void print_schedule(const struct round_file *file, const struct atsi_schedule *schedule, double seconds,
                           FILE *out) {
    size_t n = file->instance.n_units;
    fprintf(out, "{\"assignment\":[");
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s\"%s\"", i ? "," : "", schedule->assignment[i] == ATSI_GPU ? "gpu" : "cpu");
    fprintf(out, "],\"total_us\":%.17g,\"lower_bound_us\":%.17g", schedule->total_us, schedule->lower_bound_us);
    if (file->policy == ATSI_POLICY_PAPER) fprintf(out, ",\"paper_objective_us\":%.17g", schedule->paper_objective_us);
    print_units(schedule, n, out);
    print_transfers(file, schedule, out);
    fprintf(out, ",\"seconds\":%.9f}\n", seconds);
}

static enum atsi_status schedule_and_print(const struct round_file *file, FILE *out, struct atsi_error *err) {
    struct atsi_scheduler *scheduler = NULL;
    struct atsi_schedule schedule;
    ATSI_TRY(atsi_scheduler_create(file->instance.n_units, &scheduler, err));
    double start_us = atsi_clock_us();
    enum atsi_status status = atsi_scheduler_run(scheduler, &file->instance, file->policy, NULL, &schedule, err);
    if (status == ATSI_OK) {
        print_schedule(file, &schedule, (atsi_clock_us() - start_us) * 1e-6, out);
        if (fflush(out) != 0) status = atsi_fail(err, ATSI_FAILED, "cannot write the result: %s", strerror(errno));
    }
    atsi_scheduler_free(scheduler);
    return status;
}

enum atsi_status atsi_schedule_file(const char *path, FILE *out, struct atsi_error *err) {
    struct round_file file = {0};
    enum atsi_status status = atsi_instance_read_file(path, read_tree, &file, err);
    if (status == ATSI_OK) status = schedule_and_print(&file, out, err);
    free(file.units);
    return status;
}
