// instance.h: the instance files of `atsi-plan --solve` (JSON in, JSON out).
#ifndef ATSI_PLANNER_SOLVE_INSTANCE_H
#define ATSI_PLANNER_SOLVE_INSTANCE_H

#include <stdbool.h>
#include <stdio.h>

#include "formats/base/error.h"
#include "planner/solve/solve.h"

// A parsed instance; the units are owned. With `partition` the policy of Algorithm 1 is asked for ("moe").
struct atsi_solve_file {
    struct atsi_solve_instance instance;
    struct atsi_solve_unit *units;
    bool partition;
};

// Strict: anything malformed is ATSI_BAD_INPUT and the message names file, unit and field.
enum atsi_status atsi_solve_file_read(const char *path, struct atsi_solve_file *file, struct atsi_error *err);
void atsi_solve_file_free(struct atsi_solve_file *file); // also after a failed read

// Reads the instance, solves and cross-checks it, writes one JSON object to `out`. Nothing is written on failure.
enum atsi_status atsi_solve_file(const char *path, FILE *out, struct atsi_error *err);

#endif
