#include "runtime/chat.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/grow.h"
#include "runtime/chat_channel.h"
#include "runtime/chat_input.h"
#include "runtime/chat_render.h"
#include "runtime/input.h"
#include "runtime/output.h"

struct chat {
    const struct atsi_chat_host *host;
    const struct atsi_chat_format *format;
    time_t started; // the date that the format may state; fixed, so that midnight changes nothing
    struct atsi_chat_message *messages;
    size_t n_messages, messages_cap;
    struct atsi_token_list read; // the tokens in the session
};

static void free_chat(struct chat *c) {
    for (size_t i = 0; i < c->n_messages; i++) atsi_chat_message_free(&c->messages[i]);
    free(c->messages);
    atsi_token_list_free(&c->read);
}

// ---- the conversation -------------------------------------------------------------------------------------------------

// The planner found no format in the model's file. Names those that the vocabulary is made for, else all.
static enum atsi_status no_template(const struct atsi_model *model, const struct atsi_run_options *o,
                                    struct atsi_error *err) {
    char names[400];
    const char *why = model->plan.chat_template ? "the model's chat template is of a kind that is not known"
                                                : "the model has no chat template";
    atsi_chat_format_names(model->tokenizer, names, sizeof names);
    if (*names)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: %s; its vocabulary has the special tokens of --chat-format %s",
                         o->plan_path, why, names);
    atsi_chat_format_names(NULL, names, sizeof names);
    return atsi_fail(err, ATSI_BAD_INPUT, "%s: %s; give --chat-format: %s", o->plan_path, why, names);
}

enum atsi_status atsi_chat_choose_format(const struct atsi_model *model, const struct atsi_run_options *o,
                                         const struct atsi_chat_format **out, struct atsi_error *err) {
    char names[400];
    const char *name = o->chat_format ? o->chat_format : model->plan.chat_format;
    if (!model->tokenizer)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s has no tokenizer, which --chat needs", o->plan_path);
    *out = atsi_chat_format_find(name);
    if (*out) return ATSI_OK;
    if (!*name) return no_template(model, o, err);
    atsi_chat_format_names(NULL, names, sizeof names);
    return atsi_fail(err, ATSI_BAD_INPUT, "%s: \"%s\" is no chat format that is known; there are %s",
                     o->chat_format ? "--chat-format" : o->plan_path, name, names);
}

static enum atsi_status add_message(struct chat *c, enum atsi_chat_role role, const char *text, size_t size,
                                    struct atsi_error *err) {
    if (!atsi_grow((void **)&c->messages, c->n_messages, &c->messages_cap, sizeof *c->messages))
        return atsi_fail(err, ATSI_FAILED, "out of memory while keeping the conversation");
    struct atsi_chat_message *m = &c->messages[c->n_messages++];
    *m = (struct atsi_chat_message){.role = role};
    return size ? atsi_bytes_append(&m->text, text, size, err) : ATSI_OK;
}

static enum atsi_status open_chat(struct chat *c, const struct atsi_model *model, const struct atsi_run_options *o,
                                  struct atsi_error *err) {
    c->started = time(NULL);
    ATSI_TRY(atsi_chat_choose_format(model, o, &c->format, err));
    return o->system_prompt ? add_message(c, ATSI_CHAT_SYSTEM, o->system_prompt, strlen(o->system_prompt), err)
                            : ATSI_OK;
}

enum atsi_status atsi_chat_prompt(const struct atsi_model *model, const struct atsi_run_options *o, const char *text,
                                  size_t size, struct atsi_token_list *out, struct atsi_error *err) {
    struct chat c = {0};
    enum atsi_status status = open_chat(&c, model, o, err);
    if (status == ATSI_OK) status = add_message(&c, ATSI_CHAT_USER, text, size, err);
    if (status == ATSI_OK)
        status = atsi_chat_render(c.format, model->tokenizer, c.started, c.messages, c.n_messages, out, err);
    free_chat(&c);
    return status;
}

// ---- one answer -------------------------------------------------------------------------------------------------------

// What an answer's tokens go through.
struct answer {
    struct chat *chat;
    struct atsi_output output;
    struct atsi_chat_channel channel; // for formats with channels
    struct atsi_bytes text;           // of the tokens that are shown
    struct atsi_token_list ids;
};

static enum atsi_status keep(struct answer *a, uint32_t id, bool shows, struct atsi_error *err) {
    size_t size;
    const char *piece = atsi_tokenizer_piece(a->chat->host->model->tokenizer, id, &size);
    ATSI_TRY(atsi_token_list_push(&a->chat->read, id, err));
    if (!shows) return ATSI_OK;
    ATSI_TRY(atsi_token_list_push(&a->ids, id, err));
    return size ? atsi_bytes_append(&a->text, piece, size, err) : ATSI_OK;
}

static bool take_token(void *context, int32_t id, struct atsi_error *err, enum atsi_status *status) {
    struct answer *a = context;
    bool shows = !(a->chat->format->flags & ATSI_CHAT_CHANNELS) || atsi_chat_channel_shows(&a->channel, (uint32_t)id);
    *status = keep(a, (uint32_t)id, shows, err);
    if (*status != ATSI_OK) return false;
    return shows ? atsi_output_token(&a->output, id, err, status)
                 : atsi_output_silent_token(&a->output, id, err, status);
}

// Brings the session back to what it has in common with `prompt`: *n_kept tokens. At least the last one stays to be read, since its
// logits are needed.
static enum atsi_status rewind_session(struct chat *c, const struct atsi_token_list *prompt, uint32_t *n_kept,
                                       struct atsi_error *err) {
    uint32_t n = 0;
    while (n + 1 < prompt->n_ids && n < c->read.n_ids && c->read.ids[n] == prompt->ids[n]) n++;
    if (!atsi_session_truncate(c->host->session, n)) {
        n = 0; // states that cannot go back begin anew
        if (!atsi_session_truncate(c->host->session, 0))
            return atsi_fail(err, ATSI_FAILED, "the session cannot be cleared");
    }
    *n_kept = n;
    c->read.n_ids = n;
    if (c->host->lookup) atsi_lookup_truncate(c->host->lookup, n);
    return ATSI_OK;
}

static enum atsi_status generate(struct answer *a, const struct atsi_token_list *prompt,
                                 struct atsi_generate_result *result, struct atsi_error *err) {
    struct chat *c = a->chat;
    const struct atsi_chat_host *h = c->host;
    struct atsi_generate_params params = {h->options->n_predict, h->options->ignore_eos, take_token, a, h->lookup};
    uint32_t n_kept = 0;
    ATSI_TRY(rewind_session(c, prompt, &n_kept, err));
    for (size_t i = n_kept; i < prompt->n_ids; i++) ATSI_TRY(atsi_token_list_push(&c->read, prompt->ids[i], err));
    ATSI_TRY(atsi_generate(h->model, h->session, h->sampler, (const int32_t *)prompt->ids + n_kept,
                           (uint32_t)prompt->n_ids - n_kept, h->on_logits, h->logits_context, &params, result, err));
    if (result->end_id >= 0) ATSI_TRY(atsi_token_list_push(&c->read, (uint32_t)result->end_id, err));
    c->read.n_ids =
        h->session->n_past; // the last token is not read when a limit, a stop text or an interrupt ended the answer
    return ATSI_OK;
}

// The conversation goes on with what the user saw: of an answer that a stop text ended, not its tokens but the text before that.
static enum atsi_status add_answer(struct answer *a, const struct atsi_generate_result *result,
                                   struct atsi_error *err) {
    struct chat *c = a->chat;
    if (result->finish == ATSI_FINISH_STOP) {
        struct atsi_str shown = atsi_output_shown(&a->output);
        return add_message(c, ATSI_CHAT_ASSISTANT, shown.data, shown.size, err);
    }
    ATSI_TRY(add_message(c, ATSI_CHAT_ASSISTANT, a->text.data, a->text.size, err));
    c->messages[c->n_messages - 1].ids = a->ids;
    a->ids = (struct atsi_token_list){0};
    return ATSI_OK;
}

static enum atsi_status answer_prompt(struct answer *a, const struct atsi_token_list *prompt,
                                      struct atsi_generate_result *result, struct atsi_error *err) {
    const struct atsi_chat_host *h = a->chat->host;
    ATSI_TRY(atsi_output_open(&a->output, h->options, h->model->tokenizer, err));
    enum atsi_status status = generate(a, prompt, result, err);
    enum atsi_status finished = atsi_output_finish(&a->output, result, status == ATSI_OK ? err : NULL);
    ATSI_TRY(status);
    ATSI_TRY(finished);
    if ((a->chat->format->flags & ATSI_CHAT_CHANNELS) && a->ids.n_ids == 0 && result->n_generated && !h->options->quiet)
        fprintf(stderr, "the answer ended (%s) before its final part\n", atsi_finish_name(result->finish));
    return add_answer(a, result, err);
}

static enum atsi_status take_turn(struct chat *c, const struct atsi_bytes *text, struct atsi_generate_result *result,
                                  struct atsi_error *err) {
    const struct atsi_tokenizer *tokenizer = c->host->model->tokenizer;
    struct answer a = {.chat = c, .channel = atsi_chat_channel_start(tokenizer)};
    struct atsi_token_list prompt = {0};
    memset(result, 0, sizeof *result);
    enum atsi_status status = add_message(c, ATSI_CHAT_USER, text->data, text->size, err);
    if (status == ATSI_OK)
        status = atsi_chat_render(c->format, tokenizer, c->started, c->messages, c->n_messages, &prompt, err);
    if (status == ATSI_OK) status = answer_prompt(&a, &prompt, result, err);
    atsi_token_list_free(&prompt);
    atsi_output_free(&a.output);
    atsi_bytes_free(&a.text);
    atsi_token_list_free(&a.ids);
    return status;
}

// ---- turn by turn -----------------------------------------------------------------------------------------------------

static void add_up(struct atsi_generate_result *total, const struct atsi_generate_result *turn) {
    total->finish = turn->finish;
    total->end_id = turn->end_id;
    total->n_prompt += turn->n_prompt;
    total->n_generated += turn->n_generated;
    total->prefill_us += turn->prefill_us;
    total->decode_us += turn->decode_us;
}

static enum atsi_status single_turn(struct chat *c, struct atsi_generate_result *total, struct atsi_error *err) {
    struct atsi_bytes text = {0};
    enum atsi_status status = atsi_read_prompt(c->host->options, &text, err);
    if (status == ATSI_OK) status = take_turn(c, &text, total, err);
    atsi_bytes_free(&text);
    return status;
}

// An answer printed as text ends with a line break of its own, so that the next prompt begins a line.
static void end_answer(const struct atsi_run_options *o) {
    if (o->json || o->print_ids) return;
    putchar('\n');
    fflush(stdout);
}

static enum atsi_status next_turn(struct chat *c, const struct atsi_bytes *line, struct atsi_generate_result *total,
                                  struct atsi_error *err) {
    struct atsi_generate_result turn;
    ATSI_TRY(take_turn(c, line, &turn, err));
    end_answer(c->host->options);
    add_up(total, &turn);
    if (*c->host->interrupted && *c->host->interrupted != SIGINT)
        return atsi_fail(err, ATSI_INTERRUPTED, "interrupted");
    c->host->listen();
    return ATSI_OK;
}

static enum atsi_status idle(void *context, struct atsi_error *err) {
    const struct chat *c = context;
    return atsi_session_idle(c->host->session, err);
}

static enum atsi_status all_turns(struct chat *c, struct atsi_generate_result *total, struct atsi_error *err) {
    struct atsi_chat_input input = {.idle = idle, .idle_context = c};
    struct atsi_bytes line = {0};
    bool got = true;
    enum atsi_status status = ATSI_OK;
    while (status == ATSI_OK && got && !ferror(stdout)) {
        status = atsi_chat_read_line(&input, c->host->interrupted, &line, &got, err);
        if (status == ATSI_OK && got && line.size) status = next_turn(c, &line, total, err);
    }
    atsi_bytes_free(&line);
    atsi_chat_input_free(&input);
    // An interrupt that ended an answer did not end the chat; one at the prompt did.
    if (status == ATSI_OK && total->finish == ATSI_FINISH_INTERRUPT) total->finish = ATSI_FINISH_STOP;
    if (status == ATSI_INTERRUPTED) total->finish = ATSI_FINISH_INTERRUPT;
    return status == ATSI_INTERRUPTED ? ATSI_OK : status;
}

static void warn_of_missing_mark(const struct chat *c) {
    const char *mark = atsi_chat_format_missing_mark(c->format, c->host->model->tokenizer);
    if (mark && !c->host->options->quiet)
        fprintf(stderr, "the vocabulary has no token %s: chat format %s may not be the model's\n", mark,
                c->format->name);
}

enum atsi_status atsi_chat_run(const struct atsi_chat_host *host, struct atsi_generate_result *total,
                               struct atsi_error *err) {
    struct chat c = {.host = host};
    const struct atsi_run_options *o = host->options;
    memset(total, 0, sizeof *total);
    enum atsi_status status = open_chat(&c, host->model, o, err);
    if (status == ATSI_OK) warn_of_missing_mark(&c);
    if (status == ATSI_OK)
        status = o->prompt || o->prompt_path ? single_turn(&c, total, err) : all_turns(&c, total, err);
    free_chat(&c);
    return status;
}
