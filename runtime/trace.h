// trace.h: what each processor did when, as a Chrome / Perfetto trace (--trace FILE; open it in ui.perfetto.dev).
#ifndef ATSI_RUNTIME_TRACE_H
#define ATSI_RUNTIME_TRACE_H

#include "formats/base/error.h"

enum atsi_trace_lane {
    ATSI_LANE_CPU = 1,
    ATSI_LANE_WAIT = 2,
    ATSI_LANE_GPU = 3,
    ATSI_LANE_COPY = 4,
    ATSI_LANE_ROUND = 5,
    ATSI_LANE_DECISION = 6
};

struct atsi_trace;

// Into an output file (formats/base/output_file.h). End it with atsi_trace_close.
enum atsi_status atsi_trace_open(struct atsi_trace **out, const char *path, struct atsi_error *err);
// A span on a lane; times in microseconds of atsi_clock_us(). Names need no escaping by the caller. NULL trace: nothing.
void atsi_trace_span(struct atsi_trace *t, enum atsi_trace_lane lane, const char *name, double start_us,
                     double duration_us);
// Ends the file. ATSI_FAILED when anything could not be written. NULL is fine.
enum atsi_status atsi_trace_close(struct atsi_trace *t, struct atsi_error *err);
void atsi_trace_discard(struct atsi_trace *t); // it is not wanted any more; NULL is fine

#endif
