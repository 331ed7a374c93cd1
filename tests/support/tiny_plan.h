// tiny_plan.h: a tiny model (tiny_model.h) on its way to a plan: opened, lowered, and the plan's content, not placed yet.
#ifndef ATSI_TESTS_SUPPORT_TINY_PLAN_H
#define ATSI_TESTS_SUPPORT_TINY_PLAN_H

#include "planner/content.h"
#include "tests/support/tiny_model.h"

struct tiny_plan {
    struct bytes file;
    struct atsi_gguf *gguf;
    struct atsi_lowered lowered;
    struct atsi_plan plan;
};

// change NULL: none; chunk 0: the planner's default. The test fails when a step does.
void tiny_plan_open(struct tiny_plan *t, const char *arch, const struct tiny_change *change, uint32_t chunk);
void tiny_plan_close(struct tiny_plan *t);

#endif
