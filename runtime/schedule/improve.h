// improve.h: local search on a complete round (docs/scheduling.md). Internal to runtime/schedule.
//
// Moves flip up to two units that stand close together. A move is timed from its first unit on; how much later the
// rest of the round would end follows from the longest paths of the current round, so most moves are rejected after a
// few units.
#ifndef ATSI_RUNTIME_SCHEDULE_IMPROVE_H
#define ATSI_RUNTIME_SCHEDULE_IMPROVE_H

#include <stddef.h>

#include "runtime/schedule/schedule.h"

struct improver;
struct improver *improver_create(size_t n_units_max); // NULL without memory
void improver_free(struct improver *m);

// Improves `assignment` in place until no move helps or `n_steps_max` units have been timed. Returns the end of the
// round.
double improve(struct improver *m, const struct atsi_schedule_instance *inst, size_t n_steps_max, uint8_t *assignment);

#endif
