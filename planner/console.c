#include "planner/console.h"

#include <stdarg.h>
#include <string.h>

#include "formats/base/clock.h"

void atsi_say(const struct atsi_console *console, const char *format, ...) {
    if (console->quiet) return;
    va_list args;
    va_start(args, format);
    vfprintf(console->log, format, args);
    va_end(args);
    fputc('\n', console->log);
}

void atsi_say_lines(const struct atsi_console *console, const char *text) {
    if (!console->quiet) fputs(text, console->log);
}

void atsi_progress_report(void *user, uint64_t done, uint64_t total) {
    struct atsi_progress_bar *bar = user;
    enum {
        WIDTH = 40
    };
    static const char marks[] = "########################################";
    if (!bar->console->is_terminal || bar->console->quiet || total == 0) return;
    double now = atsi_clock_us();
    if (bar->is_drawn && now - bar->last_us < 1e5 && done < total) return;
    double share = (double)done / (double)total;
    int filled = (int)(share * WIDTH);
    fprintf(bar->console->log, "\r%s [%.*s%*s] %3d %%", bar->label, filled, marks, WIDTH - filled, "",
            (int)(share * 100));
    fflush(bar->console->log);
    bar->last_us = now;
    bar->is_drawn = true;
}

void atsi_progress_end(struct atsi_progress_bar *bar) {
    if (bar->is_drawn) fprintf(bar->console->log, "\r%*s\r", (int)strlen(bar->label) + 50, "");
    bar->is_drawn = false;
}
