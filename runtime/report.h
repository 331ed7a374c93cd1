// report.h: what a run tells on standard error: a progress bar while loading, the figures at the end.
#ifndef ATSI_RUNTIME_REPORT_H
#define ATSI_RUNTIME_REPORT_H

#include <signal.h>
#include <stdio.h>

#include "formats/version.h"
#include "runtime/generate.h"
#include "runtime/options.h"
#include "runtime/weights.h"

struct atsi_run_times {
    double load_us;
    struct atsi_generate_result result;
};

// ---- loading: a bar on standard error when it is a terminal and the load takes a while --------------------------------
struct atsi_load_bar {
    const volatile sig_atomic_t *stop; // not 0: the loading ends
    bool enabled, shown;
    double started_us, drawn_us;
};
struct atsi_load_bar atsi_load_bar_start(bool quiet, const volatile sig_atomic_t *stop);
bool atsi_load_bar_advance(void *context, uint64_t done_bytes, uint64_t total_bytes);
void atsi_load_bar_finish(struct atsi_load_bar *bar);

// Load, prefill and decode times, rates, threads and memory, one line each.
void atsi_report_times(FILE *f, const struct atsi_session *session, const struct atsi_weights *weights,
                       const struct atsi_run_times *times);

// --stats: memory of the host; with a device how the last rounds were assigned, their predicted time against the measured one, and
// what each use of the link took where several were tried.
void atsi_report_stats(FILE *f, const struct atsi_session *session, const struct atsi_weights *weights,
                       const struct atsi_run_times *times);

// And what was guessed from the text so far.
void atsi_report_lookup(FILE *f, const struct atsi_lookup *lookup);

// Begins a line on standard error when standard output goes to the same place, where the text has just ended without one.
void atsi_report_begin_line(void);

#endif
