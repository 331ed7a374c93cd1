#include "runtime/report.h"

#include <math.h>
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
    fprintf(f, "decode   %8.3f s   %u tokens, %.2f tok/s, ended by %s%s\n", r->decode_us * 1e-6, r->n_generated,
            rate(n_decode_rounds(r), r->decode_us), atsi_finish_name(r->finish),
            r->finish == ATSI_FINISH_CONTEXT ? " (the context is full)" : "");
}

// Of the last rounds, under the assignment at work.
static void report_use(FILE *f, const struct atsi_rescheduler *r, double token_us) {
    struct atsi_round_figures figures = atsi_prepared_round_figures(r->at_work);
    double recent_us = atsi_tuner_recent_us(&r->tuner);
    if (recent_us <= 0) recent_us = token_us;
    fprintf(f, "link     %.1f MiB a token, %.2f GB/s; ", figures.link_bytes / 0x1p20,
            figures.link_bytes / recent_us * 1e-3);
    // Splits are smoothed over more rounds than the times of rounds are: of a card that never rests the ratio may be above 1.
    fprintf(f, "GPU busy %.1f %% of a round\n", 100 * fmin(1, figures.device_us / recent_us));
}

static void report_uses(FILE *f, const struct atsi_tuner *tuner) {
    const char *before = ":";
    fprintf(f, "tried    %s%s", atsi_link_use_name(tuner->wish.use),
            atsi_tuner_is_settled(tuner) ? "" : ", not settled yet");
    for (uint32_t i = 0; i < tuner->n_finished; i++) {
        const struct atsi_tuner_result *result = &tuner->finished[i];
        fprintf(f, "%s %s %.2f ms a token", before, atsi_link_use_name(result->wish.use), result->median_us * 1e-3);
        before = ",";
    }
    fputc('\n', f);
}

static void report_scales(FILE *f, const char *what, const struct atsi_scales *s) {
    fprintf(f, "%s cpu x%.2f, gpu x%.2f, link x%.2f, a hand-over +%.0f us", what, s->cpu, s->gpu, s->link,
            s->handover_us);
}

// Algorithm 3 at work, and what it cost the rounds.
static void report_decisions(FILE *f, const struct atsi_rescheduler *r, double token_us) {
    const struct atsi_rescheduler_stats *s = &r->stats;
    fprintf(
        f,
        "decided  %u times for single tokens, %u taken over, the last one: %s; at most %.2f ms each, %s; hand-over at "
        "most %.0f us, %.2f %% of a round; the first token waited %.1f ms\n",
        s->n_decided, s->n_adopted, s->reason, s->most_took_us * 1e-3,
        r->params.in_turn ? "between rounds" : "beside the rounds", s->most_handover_us,
        100 * s->most_handover_us / token_us, s->waited_us * 1e-3);
    report_scales(f, "speeds   times by the plan's: recorded", &atsi_executor_recorder(r->executor, true)->scales);
    report_scales(f, "; decided for", &s->scales);
    fputc('\n', f);
}

static void report_prediction(FILE *f, const struct atsi_rescheduler *r, double token_us) {
    static const struct atsi_scales as_planned = {1, 1, 1, 0};
    double planned_us = atsi_prepared_round_time(r->at_work, &as_planned),
           recorded_us = atsi_prepared_round_time(r->at_work, &atsi_executor_recorder(r->executor, true)->scales),
           recent_us = atsi_tuner_recent_us(&r->tuner);
    if (planned_us <= 0) return;
    fprintf(f, "a token  predicted %.2f ms by the plan, %.2f ms at the recorded speeds; measured %.2f ms on average",
            planned_us * 1e-3, recorded_us * 1e-3, token_us * 1e-3);
    if (recent_us > 0) fprintf(f, ", %.2f ms lately", recent_us * 1e-3);
    fputc('\n', f);
}

static void report_rounds(FILE *f, const struct atsi_session *session, const struct atsi_generate_result *result) {
    const struct atsi_rescheduler *r = &session->rescheduler;
    fprintf(f, "rounds   of %u tokens: %u units promoted, %u shared, %u waits of the CPU\n", r->assigned_for,
            r->stats.decision.n_promoted, r->stats.decision.n_shared, atsi_executor_n_handovers(session->executor));
    struct atsi_divided_routers routers = atsi_executor_divided_routers(session->executor);
    if (routers.n > 0)
        fprintf(f,
                "divided  slots behind %u routers token by token; behind %u the GPU computes the last operation of all "
                "slots\n",
                routers.n, routers.n_last_on_gpu);
    if (r->assigned_for != 1 || n_decode_rounds(result) == 0) return;
    double token_us = result->decode_us / n_decode_rounds(result);
    report_prediction(f, r, token_us);
    report_use(f, r, token_us);
    if (!r->tuner.params.is_dynamic) return;
    if (r->tuner.params.has_choice) report_uses(f, &r->tuner);
    report_decisions(f, r, token_us);
}

static double percent(double part, double all) { return all > 0 ? 100 * part / all : 0; }

static void report_loading(FILE *f, const struct atsi_load_times *t) {
    fprintf(
        f,
        "weights  loaded in %.1f ms by %u threads: memory of the card %.1f, reading and copying to it %.1f, mapping "
        "what stays %.1f, pinning that %.1f\n",
        t->all_us * 1e-3, t->n_threads, t->room_us * 1e-3, t->upload_us * 1e-3, t->map_us * 1e-3, t->pin_us * 1e-3);
    if (t->upload.bytes == 0) return;
    double threads_us = t->upload_us * t->n_threads;
    fprintf(
        f,
        "upload   %.1f MiB at %.1f GB/s, buffers after %.1f ms; of the threads' time %.0f %% reading, %.0f %% waiting "
        "for the link\n",
        (double)t->upload.bytes / 0x1p20, rate((double)t->upload.bytes, t->upload_us) * 1e-9, t->upload.ring_us * 1e-3,
        percent(t->upload.read_us, threads_us), percent(t->upload.wait_us, threads_us));
}

static void report_ring(FILE *f, const struct atsi_pinned_ring *ring) {
    if (!ring) return;
    struct atsi_pinned_ring_figures figures = atsi_pinned_ring_figures(ring);
    fprintf(f, "ring     %.1f MiB travelled through %.1f MiB of pinned memory, filled by %u threads at %.1f GB/s\n",
            (double)figures.sent_bytes / 0x1p20, (double)figures.ring_bytes / 0x1p20, figures.n_threads,
            figures.bytes_per_us * 1e-3);
}

static void report_crowding(FILE *f, const struct atsi_executor *executor) {
    struct atsi_pool_crowding c = atsi_executor_crowding(executor);
    if (c.n_lost == 0) return;
    fprintf(f,
            "crowded  %llu times a thread lost its core in the middle of an item; others did %llu items again, and "
            "sooner\n",
            (unsigned long long)c.n_lost, (unsigned long long)c.n_repeated);
}

void atsi_report_stats(FILE *f, const struct atsi_session *session, const struct atsi_weights *weights,
                       const struct atsi_run_times *times) {
    fprintf(
        f,
        "memory   host: weights %.1f MiB, %.1f of them copied or unpacked, %.1f pinned; activations and states %.1f "
        "MiB\n",
        (double)weights->host_bytes / 0x1p20, (double)weights->unpacked_bytes / 0x1p20,
        (double)weights->pinned_bytes / 0x1p20, (double)atsi_executor_host_bytes(session->executor) / 0x1p20);
    report_loading(f, &weights->times);
    report_ring(f, weights->ring);
    report_crowding(f, session->executor);
    if (!weights->owner) return;
    atsi_reserve_report(f, session->reserve);
    if (session->exchange) atsi_exchange_report(f, session->exchange);
    report_rounds(f, session, &times->result);
}

void atsi_report_lookup(FILE *f, const struct atsi_lookup *lookup) {
    const struct atsi_lookup_pace *p = &lookup->pace;
    if (lookup->n_rounds == 0) {
        fputs("lookup   nothing was guessed\n", f);
        return;
    }
    fprintf(f,
            "lookup   %llu tokens guessed in %llu rounds, %llu of them right, %.0f %% lately; a round of one token "
            "%.2f ms, "
            "each guess %.2f ms more\n",
            (unsigned long long)lookup->n_guessed, (unsigned long long)lookup->n_rounds,
            (unsigned long long)lookup->n_right, 100 * p->right, p->single_us * 1e-3, p->more_us * 1e-3);
}
