// decision_log.h: every decision about decode rounds as a row of a CSV file (--decisions FILE): what was asked for and why, what was
// promised, and what the rounds before it took. Written between rounds.
#ifndef ATSI_RUNTIME_DECISION_LOG_H
#define ATSI_RUNTIME_DECISION_LOG_H

#include "formats/base/output_file.h"
#include "runtime/tuner.h"

struct atsi_decision_entry {
    double time_us;      // atsi_clock_us(); the file has seconds of it
    const char *verdict; // "taken over", "declined", "returned"
    const char *reason;  // of the tuner
    struct atsi_tuner_wish wish;
    struct atsi_scales recorded; // when it was asked for
    struct atsi_decision decision;
    double forecast_us,
        at_work_forecast_us; // of the wish and of what was at work, both at the recorded speeds; 0: unknown
    double at_work_us;       // median of the last rounds of what was at work; 0: too few
    uint32_t at_work_rounds; // under it
};

// Opens the file and writes what the columns are. Closed as every output file.
enum atsi_status atsi_decision_log_open(struct atsi_output_file **out, const char *path, struct atsi_error *err);
void atsi_decision_log_note(struct atsi_output_file *log,
                            const struct atsi_decision_entry *entry); // NULL log: nothing

#endif
