#include "runtime/report.h"

#include <unistd.h>

#include "formats/base/clock.h"

// ---- the bar ------------------------------------------------------------------------------------------------------

struct atsi_load_bar atsi_load_bar_start(bool quiet, const volatile sig_atomic_t *stop) {
    return (struct atsi_load_bar){.stop = stop, .enabled = !quiet && isatty(STDERR_FILENO), .started_us = atsi_clock_us()};
}

static void draw(struct atsi_load_bar *bar, uint64_t done_bytes, uint64_t total_bytes) {
    double now_us = atsi_clock_us();
    // Nothing is drawn for loads under half a second, and nothing more often than ten times a second.
    if (!bar->enabled || now_us - bar->started_us < 5e5 || now_us - bar->drawn_us < 1e5) return;
    char cells[31];
    int n_full = total_bytes ? (int)(30.0 * (double)done_bytes / (double)total_bytes) : 30;
    for (int i = 0; i < 30; i++) cells[i] = i < n_full ? '#' : '.';
    cells[30] = 0;
    fprintf(stderr, "\rload [%s] %.1f / %.1f GiB", cells, (double)done_bytes / 0x1p30, (double)total_bytes / 0x1p30);
    bar->shown = true;
    bar->drawn_us = now_us;
}

bool atsi_load_bar_advance(void *context, uint64_t done_bytes, uint64_t total_bytes) {
    struct atsi_load_bar *bar = context;
    draw(bar, done_bytes, total_bytes);
    return !*bar->stop;
}

void atsi_load_bar_finish(struct atsi_load_bar *bar) {
    if (bar->shown) fputs("\r\033[K", stderr);
}

// ---- figures ------------------------------------------------------------------------------------------------------

static double rate(double n, double us) { return us > 0 ? n * 1e6 / us : 0; }

void atsi_report_times(FILE *f, const struct atsi_session *session, const struct atsi_weights *weights,
                       const struct atsi_run_times *times) {
    const struct atsi_generate_result *r = &times->result;
    uint32_t n_decoded = r->n_generated > 1 ? r->n_generated - 1 : 0;
    fprintf(f, "load     %8.3f s   %.1f MiB on the CPU, %.1f MiB on the GPU, %d threads, %s\n", times->load_us * 1e-6,
            (double)weights->host_bytes / 0x1p20, (double)weights->resident_bytes / 0x1p20,
            atsi_executor_n_threads(session->executor), atsi_executor_isa(session->executor));
    fprintf(f, "prefill  %8.3f s   %u tokens, %.1f tok/s\n", r->prefill_us * 1e-6, r->n_prompt, rate(r->n_prompt, r->prefill_us));
    fprintf(f, "decode   %8.3f s   %u tokens, %.2f tok/s, ended by %s\n", r->decode_us * 1e-6, r->n_generated,
            rate(n_decoded, r->decode_us), atsi_finish_name(r->finish));
}
