// report.h: plans as text and JSON for people and scripts.
#ifndef ATSI_PLANNER_REPORT_H
#define ATSI_PLANNER_REPORT_H

#include "planner/console.h"
#include "planner/write_plan.h"

// `atsi-plan --info`: what a plan holds. With `json` the manifest itself.
enum atsi_status atsi_report_info(FILE *out, const struct atsi_plan_file *file, const struct atsi_plan *plan, bool json,
                                  struct atsi_error *err);

// `atsi-plan --verify` of a plan that is good: one line; with `json` one object.
enum atsi_status atsi_report_verified(FILE *out, const struct atsi_plan_file *file, bool json, struct atsi_error *err);

// After a plan was written: a few lines on log; with `json` one object on out.
enum atsi_status atsi_report_written(const struct atsi_console *console, const char *path, const struct atsi_plan *plan,
                                     const struct atsi_write_result *result, bool json, struct atsi_error *err);

#endif
