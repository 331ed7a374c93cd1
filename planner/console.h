// console.h: where a command writes. Results go to `out`, everything else to `log`.
#ifndef ATSI_PLANNER_CONSOLE_H
#define ATSI_PLANNER_CONSOLE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct atsi_console {
    FILE *out, *log;
    bool quiet;                        // nothing but errors on log
    bool is_terminal;                  // log is one: a progress bar can be drawn
    const volatile sig_atomic_t *stop; // not 0: the user wants the program to end
};

// A line on log, unless quiet.
void atsi_say(const struct atsi_console *console, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Every line of `text` on log, unless quiet.
void atsi_say_lines(const struct atsi_console *console, const char *text);

// A bar that is redrawn in place, at most ten times a second. Zero-initialise but for console and label.
struct atsi_progress_bar {
    const struct atsi_console *console;
    const char *label;
    double last_us;
    bool is_drawn;
};
// Fits struct atsi_plan_progress; `user` is the bar.
void atsi_progress_report(void *user, uint64_t done, uint64_t total);
void atsi_progress_end(struct atsi_progress_bar *bar); // clears the line

#endif
