// output_name.h: the plan's file name when none is given.
#ifndef ATSI_PLANNER_OUTPUT_NAME_H
#define ATSI_PLANNER_OUTPUT_NAME_H

// The last part of `input_path` without ".gguf" (or ".atsp") and without a split model's "-00001-of-00003", plus ".atsp": a name in
// the current folder. Returns memory from malloc, NULL when there is none.
char *atsi_output_name(const char *input_path);

#endif
