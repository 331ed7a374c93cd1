// instance.h: the instance files of `atsi-plan --solve` (JSON in, JSON out).
#ifndef ATSI_PLANNER_SOLVE_INSTANCE_H
#define ATSI_PLANNER_SOLVE_INSTANCE_H

#include <stdio.h>

#include "formats/base/error.h"

// Reads the instance, solves and cross-checks it, writes one JSON object to `out`. Nothing is written on failure. Strict: anything
// malformed is ATSI_BAD_INPUT and the message names file, unit and field.
enum atsi_status atsi_solve_file(const char *path, FILE *out, struct atsi_error *err);

#endif
