// plan_experts.h: experts that are resident one by one, between the manifest's JSON and memory (private to plan_*.c).
#ifndef ATSI_FORMATS_PLAN_EXPERTS_H
#define ATSI_FORMATS_PLAN_EXPERTS_H

#include <cjson/cJSON.h>

#include "formats/plan.h"

// Adds the member "resident_experts" to the manifest; a plan without any gets none. Returns false when memory runs out.
bool atsi_plan_experts_write(cJSON *root, const struct atsi_plan *plan);
// Reads it, if it is there, once the plan's program has been read and checked. Strict: every entry names a unit with a router, and
// distinct experts of it.
enum atsi_status atsi_plan_experts_read(const cJSON *root, struct atsi_plan *plan, struct atsi_error *err);

#endif
