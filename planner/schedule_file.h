// schedule_file.h: the instance files of `atsi-plan --schedule` (JSON in, JSON out).
#ifndef ATSI_PLANNER_SCHEDULE_FILE_H
#define ATSI_PLANNER_SCHEDULE_FILE_H

#include <stdio.h>

#include "formats/base/error.h"

// Reads one round, schedules it by the policy that the file names, writes one JSON object to `out`. Strict: anything
// malformed is ATSI_BAD_INPUT and the message names file, unit and field. Nothing is written on failure.
enum atsi_status atsi_schedule_file(const char *path, FILE *out, struct atsi_error *err);

#endif
