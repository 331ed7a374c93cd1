// atsi-run: generates text from a plan. The stages in order; everything that exits or prints a message is here.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "formats/base/clock.h"
#include "formats/base/new_file.h"
#include "formats/base/standard_streams.h"
#include "formats/routing_cache.h"
#include "runtime/chat.h"
#include "runtime/generate.h"
#include "runtime/input.h"
#include "runtime/loaded.h"
#include "runtime/open_device.h"
#include "runtime/options.h"
#include "runtime/output.h"
#include "runtime/report.h"
#include "runtime/unpack.h"

static volatile sig_atomic_t interrupted; // the signal's number

// The first signal ends the run after the current round; the second one kills as usual.
static void on_signal(int number) {
    interrupted = number;
    signal(number, SIG_DFL);
}

// Before anything runs: nothing has to be ended, and a prompt that is waited for must not hold the program.
static void on_early_signal(int number) {
    (void)number;
    _exit(ATSI_INTERRUPTED);
}

// Reading a mapped file that somebody has cut short.
static void on_bus_error(int number) {
    static const char text[] = "atsi-run: the plan file was cut short while it was in use\n";
    (void)number;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(ATSI_FAILED);
    _exit(ATSI_FAILED);
}

static void listen_for_signals(void) {
    interrupted = 0;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
}

// Everything that a run holds; zeroed, so that closing a half-open one is fine.
struct run {
    const struct atsi_run_options *o;
    struct atsi_model model;
    struct atsi_device *device;
    struct atsi_loaded loaded;
    struct atsi_sampler *sampler;
    struct atsi_lookup *lookup; // NULL: nothing is guessed
    struct atsi_output output;
    struct atsi_output_file *logits;
    int32_t *ids; // [n_ids] the prompt of a completion
    uint32_t n_ids;
    struct atsi_trace *trace;
    struct atsi_output_file *decisions;
    struct atsi_run_times times;
};

// What was seen of a run that failed is worth keeping, but not instead of an older file before anything ran.
static void close_records(struct run *r, bool has_run) {
    if (has_run) {
        atsi_trace_close(r->trace, NULL);
        atsi_output_file_close(r->decisions, NULL);
    } else {
        atsi_trace_discard(r->trace);
        atsi_output_file_discard(r->decisions);
    }
}

static void close_run(struct run *r) {
    bool has_run = r->loaded.session && r->loaded.session->n_past > 0;
    atsi_output_file_discard(r->logits);
    atsi_output_free(&r->output);
    atsi_sampler_free(r->sampler);
    atsi_lookup_free(r->lookup);
    atsi_loaded_free(&r->loaded);
    if (r->device) r->device->ops->close(r->device);
    free(r->ids);
    close_records(r, has_run);
    atsi_model_close(&r->model);
}

// ---- tokenizer only -----------------------------------------------------------------------------------------------

static enum atsi_status need_tokenizer(const struct run *r, struct atsi_error *err) {
    return r->model.tokenizer
               ? ATSI_OK
               : atsi_fail(err, ATSI_BAD_INPUT, "%s has no tokenizer: give --tokens-in", r->o->plan_path);
}

// Whoever started the program without a prompt may not know that it waits for one.
static void say_what_is_awaited(const struct run *r) {
    const struct atsi_run_options *o = r->o;
    if (!o->quiet && !o->prompt && !o->prompt_path && !o->tokens_path && isatty(STDIN_FILENO))
        fputs("the prompt, ended by Ctrl-D on an empty line:\n", stderr);
}

static enum atsi_status tokenize(struct run *r, struct atsi_error *err) {
    struct atsi_bytes text = {0};
    struct atsi_token_list ids = {0};
    enum atsi_status status = need_tokenizer(r, err);
    if (status == ATSI_OK) say_what_is_awaited(r);
    if (status == ATSI_OK) status = atsi_read_prompt(r->o, &text, err);
    if (status == ATSI_OK && r->o->chat)
        status = atsi_chat_prompt(&r->model, r->o, text.data, text.size, &ids, err);
    else if (status == ATSI_OK)
        status = atsi_tokenizer_encode(r->model.tokenizer, text.data, text.size,
                                       r->o->parse_special ? ATSI_ENCODE_SPECIAL : 0, &ids, err);
    for (size_t i = 0; status == ATSI_OK && i < ids.n_ids; i++) printf("%s%u", i ? " " : "", ids.ids[i]);
    if (status == ATSI_OK) putchar('\n');
    atsi_token_list_free(&ids);
    atsi_bytes_free(&text);
    return status;
}

static enum atsi_status detokenize(struct run *r, struct atsi_error *err) {
    struct atsi_bytes text = {0};
    int32_t *ids = NULL;
    uint32_t n;
    enum atsi_status status = need_tokenizer(r, err);
    if (status == ATSI_OK)
        status = atsi_parse_ids(r->o->detokenize, strlen(r->o->detokenize), "--detokenize", &ids, &n, err);
    if (status == ATSI_OK) status = atsi_tokenizer_decode(r->model.tokenizer, (const uint32_t *)ids, n, &text, err);
    if (status == ATSI_OK && text.size) fwrite(text.data, 1, text.size, stdout);
    free(ids);
    atsi_bytes_free(&text);
    return status;
}

// ---- opening ------------------------------------------------------------------------------------------------------

// Pinned memory that cannot be had and a card that is too full cost speed: said once, in a line each.
static void tell_loaded(const struct run *r) {
    char text[2 * ATSI_TEXT_CAP];
    if (!r->device || r->o->quiet) return;
    atsi_weights_describe_cut(&r->loaded.weights, text, sizeof text);
    if (text[0]) fprintf(stderr, "note: %s\n", text);
    atsi_weights_describe_pinning(&r->loaded.weights, text, sizeof text);
    if (text[0]) fprintf(stderr, "note: %s\n", text);
}

static enum atsi_status load_weights(struct run *r, struct atsi_loaded_params *params, struct atsi_error *err) {
    struct atsi_load_bar bar = atsi_load_bar_start(r->o->quiet, &interrupted);
    params->progress = atsi_load_bar_advance;
    params->progress_context = &bar;
    enum atsi_status status = atsi_loaded_weights(&r->loaded, params, err);
    atsi_load_bar_finish(&bar);
    if (status == ATSI_OK) tell_loaded(r);
    return status;
}

static void tell_move(void *context, const struct atsi_reserve_move *m) {
    const struct run *r = context;
    bool shrinks = m->change == ATSI_RESERVE_SHRINKS;
    if (r->o->quiet) return;
    fflush(stdout);
    atsi_report_begin_line();
    fprintf(stderr, "note: %.1f MiB of the card free: %s %u units, %.1f MiB, in %.1f ms; %u of %u are on the GPU\n",
            (double)m->free_bytes / 0x1p20, shrinks ? "gave back" : "took again", m->n_units, (double)m->bytes / 0x1p20,
            m->took_us * 1e-3, m->n_resident, m->n_removable);
}

// Before a text is made in vain.
static enum atsi_status check_routing_path(const struct run *r, struct atsi_error *err) {
    if (!r->o->routing_path) return ATSI_OK;
    if (atsi_has_experts(&r->model.plan)) return atsi_new_file_try(r->o->routing_path, err);
    return atsi_fail(err, ATSI_BAD_INPUT, "--save-routing: %s is of a model without experts", r->o->plan_path);
}

static enum atsi_status save_routing(const struct run *r, struct atsi_error *err) {
    char *json;
    if (!r->o->routing_path) return ATSI_OK;
    ATSI_TRY(atsi_routing_to_json(atsi_routing_stats_of(r->loaded.routing), &json, err));
    enum atsi_status status = atsi_write_file(r->o->routing_path, json, strlen(json), err);
    free(json);
    return status;
}

// What --stats counts is kept for the model's next plan. That it cannot be is no failure of the run.
static void keep_routing(const struct run *r) {
    const struct atsi_plan *plan = &r->model.plan;
    struct atsi_error err;
    char *path = r->loaded.routing ? atsi_routing_cache_path(plan->model.gguf_hash) : NULL;
    if (!path) return;
    if (atsi_routing_cache_add(path, &plan->program, atsi_routing_stats_of(r->loaded.routing), &err) == ATSI_OK)
        fprintf(stderr, "experts  these counts are kept for atsi-plan, in %s\n", path);
    else
        fprintf(stderr, "note: the counts of experts are not kept for atsi-plan: %s\n", err.text);
    free(path);
}

static enum atsi_status open_session(struct run *r, struct atsi_error *err) {
    double started_us = atsi_clock_us();
    struct atsi_loaded_params params = {.options = r->o,
                                        .model = &r->model,
                                        .device = r->device,
                                        .counts_experts = r->o->stats || r->o->routing_path,
                                        .tell_move = tell_move,
                                        .tell_context = r,
                                        .trace = r->trace,
                                        .decisions = r->decisions,
                                        .stop = &interrupted};
    ATSI_TRY(check_routing_path(r, err));
    ATSI_TRY(load_weights(r, &params, err));
    ATSI_TRY(atsi_loaded_session(&r->loaded, &params, err));
    int n_threads = atsi_executor_n_threads(r->loaded.session->executor);
    if (r->o->n_threads > n_threads && !r->o->quiet)
        fprintf(stderr, "--threads %d: there are processors for %d, which are used\n", r->o->n_threads, n_threads);
    r->times.load_us = atsi_clock_us() - started_us;
    return ATSI_OK;
}

static enum atsi_status open_sampler(struct run *r, struct atsi_error *err) {
    struct atsi_sampler_params params = r->o->sampling;
    int32_t *banned = NULL;
    uint32_t n_banned;
    if (!r->o->seed_given) params.seed = ((uint64_t)time(NULL) << 20) ^ (uint64_t)getpid() ^ (uint64_t)atsi_clock_us();
    if (params.temp > 0 && !r->o->seed_given && !r->o->quiet && r->o->n_predict != 0)
        fprintf(stderr, "seed: %llu\n", (unsigned long long)(params.seed &= INT64_MAX));
    enum atsi_status status = atsi_model_banned_ids(&r->model, &banned, &n_banned, err);
    if (status == ATSI_OK)
        status = atsi_sampler_create(&params, r->model.plan.program.n_vocab, banned, n_banned, &r->sampler, err);
    free(banned);
    return status;
}

static enum atsi_status open_lookup(struct run *r, struct atsi_error *err) {
    const struct atsi_session *session = r->loaded.session;
    if (!r->o->n_lookup) return ATSI_OK;
    uint32_t most = atsi_session_most_checked(session); // the newest token among them
    if (most > 1)
        return atsi_lookup_create(session->n_ctx, r->o->n_lookup < most ? r->o->n_lookup : most - 1, &r->lookup, err);
    if (!r->o->quiet)
        fprintf(stderr,
                "note: --lookup: tokens cannot be checked several at once here (recurrent states, experts beside "
                "a GPU, or chunks of one token)\n");
    return ATSI_OK;
}

static void write_logits(void *context, const float *logits, uint32_t first_output, uint32_t n_outputs) {
    struct run *r = context;
    (void)first_output; // rows come in order
    fwrite(logits, sizeof *logits, (size_t)n_outputs * r->model.plan.program.n_vocab,
           atsi_output_file_stream(r->logits));
}

static enum atsi_status open_outputs(struct run *r, struct atsi_error *err) {
    const struct atsi_run_options *o = r->o;
    if (o->logits_path) ATSI_TRY(atsi_output_file_open(&r->logits, o->logits_path, err));
    if (o->trace_path) ATSI_TRY(atsi_trace_open(&r->trace, o->trace_path, err));
    return o->decisions_path ? atsi_decision_log_open(&r->decisions, o->decisions_path, err) : ATSI_OK;
}

// All of them, whatever becomes of one; the first failure is told. No round runs any more.
static enum atsi_status close_outputs(struct run *r, struct atsi_error *err) {
    enum atsi_status status = atsi_output_file_close(r->logits, err);
    if (atsi_trace_close(r->trace, status == ATSI_OK ? err : NULL) != ATSI_OK) status = ATSI_FAILED;
    if (atsi_output_file_close(r->decisions, status == ATSI_OK ? err : NULL) != ATSI_OK) status = ATSI_FAILED;
    r->logits = r->decisions = r->loaded.session->rescheduler.params.log = NULL;
    r->trace = NULL;
    return status;
}

// ---- generating ---------------------------------------------------------------------------------------------------

static enum atsi_status check_length(const struct run *r, struct atsi_error *err) {
    uint32_t n_ctx = r->o->n_ctx ? r->o->n_ctx : r->model.plan.limits.n_ctx;
    if (r->n_ids == 0) return atsi_fail(err, ATSI_BAD_INPUT, "the prompt is empty: nothing to continue");
    if (r->n_ids <= n_ctx) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "the prompt has %u tokens, the context holds %u", r->n_ids, n_ctx);
}

static enum atsi_status read_ids(struct run *r, struct atsi_error *err) {
    struct atsi_bytes text = {0};
    struct atsi_token_list list = {0};
    say_what_is_awaited(r);
    enum atsi_status status = atsi_read_prompt(r->o, &text, err);
    if (status == ATSI_OK && r->o->tokens_path) {
        status = atsi_parse_ids(text.data, text.size, r->o->tokens_path, &r->ids, &r->n_ids, err);
    } else if (status == ATSI_OK) {
        unsigned flags = ATSI_ENCODE_PROMPT | (r->o->parse_special ? ATSI_ENCODE_SPECIAL : 0u);
        status = need_tokenizer(r, err);
        if (status == ATSI_OK)
            status = atsi_tokenizer_encode(r->model.tokenizer, text.data, text.size, flags, &list, err);
        r->ids = (int32_t *)list.ids; // ids are below 2^31
        r->n_ids = (uint32_t)list.n_ids;
    }
    atsi_bytes_free(&text);
    return status == ATSI_OK ? check_length(r, err) : status;
}

static enum atsi_status complete(struct run *r, struct atsi_error *err) {
    struct atsi_generate_params params = {r->o->n_predict, r->o->ignore_eos, atsi_output_token, &r->output, r->lookup};
    ATSI_TRY(atsi_output_open(&r->output, r->o, r->model.tokenizer, err));
    enum atsi_status status = atsi_generate(&r->model, r->loaded.session, r->sampler, r->ids, r->n_ids,
                                            r->logits ? write_logits : NULL, r, &params, &r->times.result, err);
    enum atsi_status flushed = atsi_output_finish(&r->output, &r->times.result, status == ATSI_OK ? err : NULL);
    return status != ATSI_OK ? status : flushed;
}

static enum atsi_status chat(struct run *r, struct atsi_error *err) {
    struct atsi_chat_host host = {.options = r->o,
                                  .model = &r->model,
                                  .session = r->loaded.session,
                                  .sampler = r->sampler,
                                  .lookup = r->lookup,
                                  .interrupted = &interrupted,
                                  .listen = listen_for_signals,
                                  .on_logits = r->logits ? write_logits : NULL,
                                  .logits_context = r};
    return atsi_chat_run(&host, &r->times.result, err);
}

// A plan that cannot be unpacked beside itself still runs.
static enum atsi_status unpack(struct run *r, struct atsi_error *err) {
    struct atsi_load_bar bar = atsi_load_bar_start(r->o->quiet, &interrupted);
    struct atsi_unpack_params params = {.path = r->o->plan_path,
                                        .n_threads =
                                            (uint32_t)(r->o->n_threads ? r->o->n_threads : atsi_pool_default_threads()),
                                        .progress = atsi_load_bar_advance,
                                        .context = &bar,
                                        .interrupted = &interrupted};
    bool wrote = false;
    enum atsi_status status = atsi_unpack_model(&r->model, &params, &wrote, err);
    atsi_load_bar_finish(&bar);
    if (status == ATSI_OK && wrote && !r->o->quiet)
        fprintf(stderr, "unpacked, once, to %s\n", atsi_plan_file_path(r->model.file));
    if (status != ATSI_FAILED) return status;
    if (!r->o->quiet) fprintf(stderr, "%s; unpacked into memory instead, at every start\n", err->text);
    return ATSI_OK;
}

// A text that was written does not end its line; the answers of a conversation do.
static void begin_line_after_text(const struct run *r) {
    const struct atsi_run_options *o = r->o;
    bool is_conversation = o->chat && !o->prompt && !o->prompt_path;
    if (!o->json && !o->print_ids && !is_conversation) atsi_report_begin_line();
}

static enum atsi_status report(const struct run *r, struct atsi_error *err) {
    begin_line_after_text(r);
    atsi_report_times(stderr, r->loaded.session, &r->loaded.weights, &r->times);
    if (!r->o->stats) return ATSI_OK;
    atsi_report_stats(stderr, r->loaded.session, &r->loaded.weights, &r->times);
    if (r->lookup) atsi_report_lookup(stderr, r->lookup);
    if (r->loaded.routing) ATSI_TRY(atsi_routing_report(stderr, atsi_routing_stats_of(r->loaded.routing), err));
    keep_routing(r);
    return ATSI_OK;
}

// A plan made for another card still runs if it can; its owner should know.
static void tell_mismatch(const struct run *r) {
    struct atsi_device_info info;
    bool simulated = r->o->device && strncmp(r->o->device, "sim:", 4) == 0;
    if (!r->device || r->o->quiet || simulated || r->device->ops->info(r->device, &info, NULL) != ATSI_OK) return;
    if (atsi_is_planned_device(r->model.plan.device, info.name)) return;
    fprintf(stderr, "note: the plan was made for %s, this is %s; atsi-plan MODEL.gguf --vram %lluM plans for it\n",
            r->model.plan.device, info.name, (unsigned long long)(r->model.plan.limits.vram_bytes >> 20));
}

static enum atsi_status generate(struct run *r, struct atsi_error *err) {
    if (r->model.plan.vocab_only)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s holds a vocabulary only: plan the model without --vocab-only",
                         r->o->plan_path);
    const struct atsi_chat_format *format;
    ATSI_TRY(r->o->chat ? atsi_chat_choose_format(&r->model, r->o, &format, err)
                        : read_ids(r, err)); // before anything is loaded
    ATSI_TRY(open_outputs(r, err));          // a pipe waits for its reader, and a signal ends that
    listen_for_signals();
    if (atsi_plan_file_is_shipped(r->model.file)) ATSI_TRY(unpack(r, err));
    struct atsi_error fallback;
    ATSI_TRY(atsi_open_device(r->o, &r->model.plan, &r->device, &fallback, err));
    if (*fallback.text && !r->o->quiet) fprintf(stderr, "running on the CPU: %s\n", fallback.text);
    tell_mismatch(r);
    ATSI_TRY(open_session(r, err));
    ATSI_TRY(open_sampler(r, err));
    ATSI_TRY(open_lookup(r, err));
    ATSI_TRY(r->o->chat ? chat(r, err) : complete(r, err));
    ATSI_TRY(close_outputs(r, err));
    ATSI_TRY(save_routing(r, err));
    if (!r->o->quiet || r->o->stats) ATSI_TRY(report(r, err));
    return r->times.result.finish == ATSI_FINISH_INTERRUPT ? atsi_fail(err, ATSI_INTERRUPTED, "interrupted") : ATSI_OK;
}

static enum atsi_status run(struct run *r, struct atsi_error *err) {
    ATSI_TRY(atsi_model_open(&r->model, r->o->plan_path, err));
    if (r->o->mode == ATSI_RUN_TOKENIZE) return tokenize(r, err);
    if (r->o->mode == ATSI_RUN_DETOKENIZE) return detokenize(r, err);
    return generate(r, err);
}

static void tell_failure(const struct run *r, const struct atsi_error *err) {
    if (r->times.result.n_generated) begin_line_after_text(r);
    fprintf(stderr, "atsi-run: %s\n", err->text);
}

int main(int argc, char **argv) {
    struct atsi_run_options options;
    struct atsi_error err = {0};
    struct run r = {.o = &options};
    atsi_claim_standard_streams();
    signal(SIGINT, on_early_signal);
    signal(SIGTERM, on_early_signal);
    signal(SIGPIPE, SIG_IGN); // a closed pipe is an error of the write
    signal(SIGXFSZ, SIG_IGN); // and so is a file that may not grow
    signal(SIGBUS, on_bus_error);
    enum atsi_status status = atsi_run_options_parse(argc, argv, &options, &err);
    if (status == ATSI_OK && options.mode == ATSI_RUN_HELP)
        fputs(atsi_run_usage(), stdout);
    else if (status == ATSI_OK && options.mode == ATSI_RUN_VERSION)
        puts("atsi-run " ATSI_VERSION);
    else if (status == ATSI_OK)
        status = run(&r, &err);
    close_run(&r);
    if (status == ATSI_OK && fflush(stdout) && errno != EPIPE)
        status = atsi_fail(&err, ATSI_FAILED, "standard output: %s", strerror(errno));
    if (status != ATSI_OK && status != ATSI_INTERRUPTED) tell_failure(&r, &err);
    return status;
}
