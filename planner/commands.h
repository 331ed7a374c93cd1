// commands.h: what atsi-plan does for each mode of its command line.
#ifndef ATSI_PLANNER_COMMANDS_H
#define ATSI_PLANNER_COMMANDS_H

#include "planner/console.h"
#include "planner/options.h"

// `command_line` is recorded in the plan.
enum atsi_status atsi_command_make(const struct atsi_plan_options *options, const char *command_line,
                                   const struct atsi_console *console, struct atsi_error *err);
enum atsi_status atsi_command_attach(const struct atsi_plan_options *options, const struct atsi_console *console,
                                     struct atsi_error *err);
enum atsi_status atsi_command_info(const struct atsi_plan_options *options, const struct atsi_console *console,
                                   struct atsi_error *err);
enum atsi_status atsi_command_verify(const struct atsi_plan_options *options, const struct atsi_console *console,
                                     struct atsi_error *err);

#endif
