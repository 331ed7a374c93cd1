#include "planner/commands.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/base/new_file.h"
#include "formats/plan_file.h"
#include "formats/routing_cache.h"
#include "planner/attach.h"
#include "planner/chat_format.h"
#include "planner/content.h"
#include "planner/explain.h"
#include "planner/html_report.h"
#include "planner/machine.h"
#include "planner/output_name.h"
#include "planner/report.h"
#include "planner/tokenizer.h"
#include "planner/what_if.h"
#include "planner/write_plan.h"

enum {
    CERTIFY_SECONDS = 5
}; // that a plan may wait for its certificate

// What a command holds until it ends.
struct making {
    const struct atsi_plan_options *options;
    const struct atsi_console *console;
    struct atsi_gguf *gguf;
    struct atsi_lowered lowered;
    struct atsi_plan plan;
    struct atsi_plan_file *base; // --attach: the plan to complete
    void *tokenizer;
    size_t tokenizer_size;
    struct atsi_pool *pool;
    struct atsi_machine machine;
    struct atsi_placement placement;
    struct atsi_routing_stats routing;
    bool has_routing;
    char *output_path;
};

static void release(struct making *m) {
    free(m->output_path);
    atsi_machine_free(&m->machine);
    atsi_routing_stats_free(&m->routing);
    atsi_pool_free(m->pool);
    free(m->tokenizer);
    atsi_plan_free(&m->plan);
    atsi_lowered_free(&m->lowered);
    atsi_plan_file_close(m->base);
    atsi_gguf_close(m->gguf);
}

// Puts the file's name in front of a message that does not start with it: the reader's own messages do.
static enum atsi_status name_file(const char *path, enum atsi_status status, struct atsi_error *err) {
    if (status == ATSI_OK || !strncmp(err->text, path, strlen(path))) return status;
    return atsi_fail_prefix(err, "%s", path);
}

static bool is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Whether the placement is looked at; then a plan is written only where -o says so.
static bool only_looks(const struct atsi_plan_options *o) { return o->explain || o->what_if || o->report_path; }

static enum atsi_status check_output(const struct making *m, const char *path, struct atsi_error *err) {
    for (uint32_t i = 0; i < atsi_gguf_n_parts(m->gguf); i++)
        if (is_same_file(path, atsi_gguf_part_path(m->gguf, i)))
            return atsi_fail(err, ATSI_BAD_INPUT, "%s: it would replace the model itself", path);
    return atsi_new_file_try(path, err);
}

// Before anything is measured or placed.
static enum atsi_status check_outputs(const struct making *m, const char *plan_path, struct atsi_error *err) {
    const char *paths[] = {plan_path, m->options->report_path, m->options->save_profile_path};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (!paths[i]) continue;
        for (size_t k = 0; k < i; k++)
            if (paths[k] && !strcmp(paths[k], paths[i]))
                return atsi_fail(err, ATSI_BAD_INPUT, "%s: two files would be written under this name", paths[i]);
        ATSI_TRY(check_output(m, paths[i], err));
    }
    return ATSI_OK;
}

static enum atsi_status choose_output(struct making *m, struct atsi_error *err) {
    m->output_path =
        m->options->output_path ? strdup(m->options->output_path) : atsi_output_name(m->options->input_path);
    if (!m->output_path) return atsi_out_of_memory(err);
    bool writes = m->options->output_path || !only_looks(m->options);
    return check_outputs(m, writes ? m->output_path : NULL, err);
}

// The tables, or none with a line when the file has no tokenizer.
static enum atsi_status build_tokenizer(struct making *m, struct atsi_error *err) {
    struct atsi_vocabulary vocabulary;
    enum atsi_status status = atsi_vocabulary_read(m->gguf, &vocabulary, err);
    if (status == ATSI_OK && vocabulary.model.data)
        status = atsi_tokenizer_build(&vocabulary, &m->tokenizer, &m->tokenizer_size, err);
    else if (status == ATSI_OK)
        atsi_say(m->console, "note: the model has no tokenizer; the plan runs with --tokens-in and --print-ids only");
    atsi_vocabulary_free(&vocabulary);
    return status;
}

// What a conversation will lack is told here, not in the first one.
static void say_chat(const struct making *m) {
    const struct atsi_plan *plan = &m->plan;
    if (!plan->chat_template) return;
    if (!plan->chat_format[0])
        atsi_say(m->console,
                 "note: the model's chat template is of a kind that is not known: the plan completes text, and "
                 "atsi-run --chat needs --chat-format NAME");
    else if (atsi_chat_format_omits_prompt(plan->chat_format, atsi_str_of(plan->chat_template)))
        atsi_say(m->console, "note: the chat template's own system prompt is left out; atsi-run --system gives one");
}

static enum atsi_status write_file(struct making *m, struct atsi_str tokenizer, struct atsi_error *err) {
    struct atsi_progress_bar bar = {.console = m->console, .label = "packing"};
    struct atsi_write_options options = {.no_weights = m->options->no_weights,
                                         .ship = m->options->ship,
                                         .progress = {atsi_progress_report, &bar},
                                         .stop = m->console->stop};
    struct atsi_write_result result;
    ATSI_TRY(atsi_pool_create((int)m->options->n_threads, &m->pool, err));
    enum atsi_status status = atsi_write_plan(m->output_path, &m->plan, m->gguf, m->lowered.recipes, tokenizer, m->pool,
                                              &options, &result, err);
    atsi_progress_end(&bar);
    ATSI_TRY(status);
    say_chat(m);
    return atsi_report_written(m->console, m->output_path, &m->plan, &result, m->options->json, err);
}

// ---- making a plan ------------------------------------------------------------------------------------------------

static enum atsi_status make_content(struct making *m, const char *command_line, struct atsi_error *err) {
    const struct atsi_plan_options *o = m->options;
    if (o->vocab_only) return atsi_content_make_vocab(m->gguf, command_line, &m->plan, err);
    struct atsi_content_options content = {.n_ctx = o->n_ctx,
                                           .chunk = o->chunk,
                                           .n_threads = o->n_threads,
                                           .kv_type = o->kv_type,
                                           .command = command_line};
    ATSI_TRY(atsi_lower(m->gguf, &(struct atsi_lower_options){.n_ctx = o->n_ctx}, &m->lowered, err));
    return atsi_content_make(m->gguf, &m->lowered, &content, &m->plan, err);
}

// Once nothing can be wrong with model and options any more, so that an error stands alone.
static void say_remarks(const struct making *m) {
    if (m->lowered.remarks) atsi_say_lines(m->console, m->lowered.remarks);
    if (m->lowered.tied)
        atsi_say(m->console,
                 "note: the output matrix is the token embedding; it is stored once and counted where it is used");
}

static enum atsi_status explain(struct making *m, const struct atsi_place_options *options, struct atsi_error *err) {
    const struct atsi_plan_options *o = m->options;
    if (o->explain) {
        ATSI_TRY(atsi_explain(m->console->out, &m->plan, &m->machine.profile, options, &m->placement, o->json, err));
    } else if (!m->console->quiet) {
        atsi_explain_budget(m->console->log, &m->plan, &m->placement);
    }
    if (o->report_path)
        ATSI_TRY(atsi_html_report(o->report_path, &m->plan, &m->machine.profile, options, &m->placement, err));
    return o->what_if ? atsi_what_if(m->console->out, &m->plan, &m->machine.profile, options, o->json, err) : ATSI_OK;
}

// What runs of the model have left, unless --routing none. Leaves nothing where there is nothing sound.
static void find_routing(struct making *m) {
    struct atsi_error why;
    char *path = m->options->no_routing ? NULL : atsi_routing_cache_path(m->plan.model.gguf_hash);
    if (!path) return;
    m->has_routing = atsi_routing_cache_load(path, &m->plan.program, &m->routing, &why);
    if (m->has_routing)
        atsi_say(m->console, "routing statistics of %llu tokens, from %s (--routing none ignores them)",
                 (unsigned long long)m->routing.layers[0].n_tokens, path);
    else if (why.text[0])
        atsi_say(m->console, "note: routing statistics are left out: %s", why.text);
    free(path);
}

static enum atsi_status read_routing(struct making *m, struct atsi_error *err) {
    const char *path = m->options->routing_path;
    m->has_routing = true;
    ATSI_TRY(atsi_routing_read(path, &m->routing, err));
    if (atsi_routing_check(&m->routing, &m->plan.program, err) == ATSI_OK) return ATSI_OK;
    return atsi_fail_prefix(err, "--routing %s", path);
}

static enum atsi_status place(struct making *m, struct atsi_error *err) {
    const struct atsi_plan_options *o = m->options;
    if (o->routing_path) ATSI_TRY(read_routing(m, err));
    ATSI_TRY(atsi_machine_find(o, &m->plan, m->console, &m->machine, err));
    if (!m->machine.use_gpu) {
        if (!o->n_pins && !o->routing_path && o->experts == ATSI_EXPERTS_AUTO && !only_looks(o)) return ATSI_OK;
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "--pin, --experts, --routing, --explain, --what-if and --report need a GPU to place for: "
                         "a --vram that is not 0 and, where no GPU can be used, --device FILE.json");
    }
    if (!o->routing_path && o->experts != ATSI_EXPERTS_UNIT) find_routing(m);
    struct atsi_place_options options = {.vram_bytes = m->machine.vram_bytes,
                                         .goal = o->goal,
                                         .choose_chunk = o->chunk == 0,
                                         .prefill_weight = o->prefill_weight,
                                         .experts = o->experts,
                                         .routing = m->has_routing ? &m->routing : NULL,
                                         .pins = o->pins,
                                         .n_pins = o->n_pins,
                                         .device = m->machine.device,
                                         .certify_seconds = CERTIFY_SECONDS};
    ATSI_TRY(atsi_place(&m->plan, &m->machine.profile, &options, &m->placement, err));
    return explain(m, &options, err);
}

static enum atsi_status make(struct making *m, const char *command_line, struct atsi_error *err) {
    const char *input = m->options->input_path;
    ATSI_TRY(atsi_gguf_open(&m->gguf, input, err));
    ATSI_TRY(choose_output(m, err));
    ATSI_TRY(name_file(input, make_content(m, command_line, err), err));
    if (!m->options->vocab_only) ATSI_TRY(place(m, err));
    say_remarks(m);
    if (only_looks(m->options) && !m->options->output_path) return ATSI_OK;
    ATSI_TRY(name_file(input, build_tokenizer(m, err), err));
    if (m->options->vocab_only && !m->tokenizer)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: --vocab-only, but the file has no tokenizer", input);
    return write_file(m, (struct atsi_str){m->tokenizer, m->tokenizer_size}, err);
}

enum atsi_status atsi_command_make(const struct atsi_plan_options *options, const char *command_line,
                                   const struct atsi_console *console, struct atsi_error *err) {
    struct making m = {.options = options, .console = console};
    enum atsi_status status = make(&m, command_line, err);
    release(&m);
    return status;
}

// ---- completing one -----------------------------------------------------------------------------------------------

static enum atsi_status read_manifest(const struct atsi_plan_file *file, struct atsi_plan *plan,
                                      struct atsi_error *err) {
    struct atsi_str manifest = atsi_plan_file_manifest(file);
    if (atsi_plan_from_json(manifest.data, manifest.size, plan, err) == ATSI_OK) return ATSI_OK;
    return atsi_fail_prefix(err, "%s", atsi_plan_file_path(file));
}

static enum atsi_status attach(struct making *m, struct atsi_error *err) {
    const char *input = m->options->input_path;
    ATSI_TRY(atsi_plan_file_open(&m->base, input, err));
    ATSI_TRY(read_manifest(m->base, &m->plan, err));
    if (m->plan.vocab_only)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: a plan that only tokenises takes no weights", input);
    ATSI_TRY(atsi_gguf_open(&m->gguf, m->options->attach_path, err));
    ATSI_TRY(choose_output(m, err));
    ATSI_TRY(name_file(input, atsi_attach(&m->plan, m->gguf, &m->lowered, err), err));
    return write_file(m, atsi_plan_file_tokenizer(m->base), err);
}

enum atsi_status atsi_command_attach(const struct atsi_plan_options *options, const struct atsi_console *console,
                                     struct atsi_error *err) {
    struct making m = {.options = options, .console = console};
    enum atsi_status status = attach(&m, err);
    release(&m);
    return status;
}

// ---- looking at one -----------------------------------------------------------------------------------------------

static enum atsi_status info(struct making *m, struct atsi_error *err) {
    ATSI_TRY(atsi_plan_file_open(&m->base, m->options->input_path, err));
    ATSI_TRY(read_manifest(m->base, &m->plan, err));
    return atsi_report_info(m->console->out, m->base, &m->plan, m->options->json, err);
}

enum atsi_status atsi_command_info(const struct atsi_plan_options *options, const struct atsi_console *console,
                                   struct atsi_error *err) {
    struct making m = {.options = options, .console = console};
    enum atsi_status status = info(&m, err);
    release(&m);
    return status;
}

static enum atsi_status verify(struct making *m, struct atsi_error *err) {
    struct atsi_progress_bar bar = {.console = m->console, .label = "verifying"};
    struct atsi_plan_progress progress = {atsi_progress_report, &bar};
    uint32_t n_threads = m->options->n_threads ? m->options->n_threads : (uint32_t)atsi_pool_default_threads();
    ATSI_TRY(atsi_plan_file_open(&m->base, m->options->input_path, err));
    ATSI_TRY(read_manifest(m->base, &m->plan, err));
    enum atsi_status status = atsi_plan_file_verify(m->base, n_threads, &progress, err);
    atsi_progress_end(&bar);
    ATSI_TRY(status);
    return atsi_report_verified(m->console->out, m->base, m->options->json, err);
}

enum atsi_status atsi_command_verify(const struct atsi_plan_options *options, const struct atsi_console *console,
                                     struct atsi_error *err) {
    struct making m = {.options = options, .console = console};
    enum atsi_status status = verify(&m, err);
    release(&m);
    return status;
}
