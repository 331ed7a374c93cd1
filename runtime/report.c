#include "runtime/report.h"

#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/clock.h"

// ---- the bar ------------------------------------------------------------------------------------------------------

struct atsi_load_bar atsi_load_bar_start(bool quiet, const volatile sig_atomic_t *stop) {
    return (struct atsi_load_bar){
        .stop = stop, .enabled = !quiet && isatty(STDERR_FILENO), .started_us = atsi_clock_us()};
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

// The first token comes out of the prefill.
static uint32_t n_decode_rounds(const struct atsi_generate_result *r) {
    return r->n_generated > 1 ? r->n_generated - 1 : 0;
}

void atsi_report_begin_line(void) {
    struct stat out, log;
    if (fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &log) == 0 && out.st_dev == log.st_dev &&
        out.st_ino == log.st_ino)
        fputc('\n', stderr);
}

void atsi_report_times(FILE *f, const struct atsi_session *session, const struct atsi_weights *weights,
                       const struct atsi_run_times *times) {
    const struct atsi_generate_result *r = &times->result;
    fprintf(f, "load     %8.3f s   %.1f MiB on the CPU, %.1f MiB on the GPU, %d threads, %s\n", times->load_us * 1e-6,
            (double)weights->host_bytes / 0x1p20, (double)weights->resident_bytes / 0x1p20,
            atsi_executor_n_threads(session->executor), atsi_executor_isa(session->executor));
    fprintf(f, "prefill  %8.3f s   %u tokens, %.1f tok/s\n", r->prefill_us * 1e-6, r->n_prompt,
            rate(r->n_prompt, r->prefill_us));
    fprintf(f, "decode   %8.3f s   %u tokens, %.2f tok/s, ended by %s\n", r->decode_us * 1e-6, r->n_generated,
            rate(n_decode_rounds(r), r->decode_us), atsi_finish_name(r->finish));
}

static void report_link(FILE *f, const struct atsi_tuner *tuner) {
    static const char *const names[] = {[ATSI_LINK_STREAMS] = "streams",
                                        [ATSI_LINK_SHARES] = "shares",
                                        [ATSI_LINK_SHARES_LESS] = "shares less",
                                        [ATSI_LINK_SHARES_MORE] = "shares more"};
    fprintf(f, "link     %s%s", names[tuner->use], tuner->settled ? "" : ", not settled yet");
    for (int use = 0; use < ATSI_LINK_USES; use++)
        if (tuner->median_us[use] > 0)
            fprintf(f, "%s %s %.2f ms a token", use ? "," : "; tried:", names[use], tuner->median_us[use] * 1e-3);
    fputc('\n', f);
}

static void report_rounds(FILE *f, const struct atsi_session *session, const struct atsi_generate_result *r) {
    struct atsi_decision d = atsi_dispatcher_last(session->dispatcher);
    fprintf(f, "rounds   of %u tokens: %u units promoted, %u shared, %u waits of the CPU\n", session->assigned_for,
            d.n_promoted, d.n_shared, atsi_executor_n_handovers(session->executor));
    if (session->assigned_for != 1 || n_decode_rounds(r) == 0 || d.predicted_us <= 0) return;
    double measured_us = r->decode_us / n_decode_rounds(r);
    fprintf(f, "a token  predicted %.2f ms, at best %.2f ms, measured %.2f ms; deciding took %.2f ms once\n",
            d.predicted_us * 1e-3, d.lower_bound_us * 1e-3, measured_us * 1e-3, d.deciding_us * 1e-3);
}

void atsi_report_stats(FILE *f, const struct atsi_session *session, const struct atsi_weights *weights,
                       const struct atsi_run_times *times) {
    fprintf(f,
            "memory   host: weights %.1f MiB, %.1f of them copied or unpacked, %s; activations and states %.1f MiB\n",
            (double)weights->host_bytes / 0x1p20, (double)weights->unpacked_bytes / 0x1p20,
            weights->owner ? atsi_weights_host_memory(weights) : "mapped",
            (double)atsi_executor_host_bytes(session->executor) / 0x1p20);
    if (!weights->owner) return;
    atsi_budget_report(f, session->budget);
    report_rounds(f, session, &times->result);
    if (session->tuner.has_choice) report_link(f, &session->tuner);
}
