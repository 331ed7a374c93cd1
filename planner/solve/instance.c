#include "planner/solve/instance.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solve/instance_fields.h"
#include "planner/solve/solve.h"

struct instance_file {
    struct atsi_solve_instance instance;
    struct atsi_solve_unit *units; // owned
    bool partition;                // the policy of Algorithm 1 is asked for ("moe")
};

static enum atsi_status read_unit(const cJSON *object, size_t i, void *out, struct atsi_error *err) {
    struct atsi_solve_unit *unit = out;
    struct atsi_instance_unit u;
    (void)i;
    ATSI_TRY(atsi_instance_unit(object, &u, err));
    *unit = (struct atsi_solve_unit){
        .size_bytes = u.size_bytes, .t_cpu_us = u.t_cpu_us, .t_gpu_us = u.t_gpu_us, .switch_us = u.switch_us};
    return atsi_json_get_bool(object, "expert", &unit->is_expert, err);
}

static enum atsi_status read_tree(const cJSON *tree, void *out, struct atsi_error *err) {
    static const char *const policies[] = {"none", "partition"};
    struct instance_file *file = out;
    struct atsi_solve_instance *inst = &file->instance;
    size_t policy = 0;
    void *units = NULL;
    ATSI_TRY(atsi_instance_size(tree, "budget_bytes", 0, &inst->budget_bytes, err));
    ATSI_TRY(atsi_instance_size(tree, "granularity_bytes", 1, &inst->granularity_bytes, err));
    ATSI_TRY(atsi_json_get_word(tree, "moe", policies, 2, &policy, err));
    file->partition = policy == 1;
    if (atsi_solve_budget_granules(inst) > ATSI_SOLVE_GRANULES_MAX)
        return atsi_fail(err, ATSI_BAD_INPUT, "the budget is more than %llu granules; raise granularity_bytes",
                         (unsigned long long)ATSI_SOLVE_GRANULES_MAX);
    enum atsi_status status = atsi_instance_units(tree, sizeof *file->units, read_unit, &units, &inst->n_units, err);
    inst->units = file->units = units;
    return status;
}

static void print_placement(const uint8_t *placement, size_t n, FILE *out) {
    fprintf(out, "{\"placement\":[");
    for (size_t i = 0; i < n; i++) fprintf(out, "%s\"%s\"", i ? "," : "", placement[i] == ATSI_GPU ? "gpu" : "cpu");
    fprintf(out, "]");
}

static void print_certificate(const struct atsi_solve_result *result, FILE *out) {
    static const char *const words[] = {"optimal", "bounded", "skipped"};
    const struct atsi_milp_result *milp = &result->milp;
    fprintf(out, ",\"milp\":{\"status\":\"%s\"", words[milp->status]);
    if (milp->status == ATSI_MILP_SKIPPED)
        fprintf(out, ",\"objective_us\":null,\"bound_us\":null},\"gap\":null");
    else
        fprintf(out, ",\"objective_us\":%.17g,\"bound_us\":%.17g},\"gap\":%.17g", milp->objective_us, milp->bound_us,
                result->gap);
}

static void print_result(const struct atsi_solve_instance *inst, const uint8_t *placement,
                         const struct atsi_solve_result *result, FILE *out) {
    const struct atsi_solve_value *value = &result->value;
    print_placement(placement, inst->n_units, out);
    fprintf(out, ",\"objective_us\":%.17g,\"used_bytes\":%llu,\"baseline_us\":%.17g,\"predicted_us\":%.17g",
            value->objective_us, (unsigned long long)value->used_bytes, value->baseline_us, value->predicted_us);
    print_certificate(result, out);
    fprintf(out, ",\"seconds\":{\"dp\":%.6f,\"milp\":%.6f}}\n", result->dp_seconds, result->milp.seconds);
}

static enum atsi_status solve_and_print(struct instance_file *file, FILE *out, struct atsi_error *err) {
    uint8_t placement[ATSI_INSTANCE_UNITS_MAX];
    struct atsi_solve_result result;
    if (file->partition)
        atsi_solve_partition(&file->instance, file->units); // in place: it reads a unit before it writes it
    ATSI_TRY(atsi_solve(&file->instance, NULL, placement, &result, err));
    print_result(&file->instance, placement, &result, out);
    return fflush(out) == 0 ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "cannot write the result: %s", strerror(errno));
}

enum atsi_status atsi_solve_file(const char *path, FILE *out, struct atsi_error *err) {
    struct instance_file file = {0};
    enum atsi_status status = atsi_instance_read_file(path, read_tree, &file, err);
    if (status == ATSI_OK) status = solve_and_print(&file, out, err);
    free(file.units);
    return status;
}
