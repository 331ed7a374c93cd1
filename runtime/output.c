#include "runtime/output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "runtime/text/stop_match.h"
#include "runtime/text/utf8_hold.h"

enum mode {
    MODE_TEXT,
    MODE_IDS,
    MODE_JSON
};

struct atsi_output_impl {
    enum mode mode;
    const struct atsi_tokenizer *tokenizer; // NULL: no text
    struct atsi_stop_match stop;            // before the hold: a stop text may begin or end inside a character
    struct atsi_utf8_hold hold;
    struct atsi_bytes kept;     // bytes that belong to the text, before characters are completed
    struct atsi_bytes ready;    // text that may go out
    struct atsi_bytes shown;    // all text that went out
    struct atsi_token_list ids; // for JSON
    bool any_id;
};

enum atsi_status atsi_output_open(struct atsi_output *out, const struct atsi_run_options *o,
                                  const struct atsi_tokenizer *tokenizer, struct atsi_error *err) {
    struct atsi_output_impl *x = out->impl = calloc(1, sizeof *x);
    if (!x) return atsi_fail(err, ATSI_FAILED, "out of memory while opening the output");
    x->mode = o->json ? MODE_JSON : o->print_ids ? MODE_IDS : MODE_TEXT;
    x->tokenizer = tokenizer;
    for (uint32_t i = 0; i < o->n_stops; i++)
        ATSI_TRY(atsi_stop_match_add(&x->stop, o->stops[i], strlen(o->stops[i]), err));
    return ATSI_OK;
}

// Sends what is ready on its way. A reader that has gone away (EPIPE) is no error: there is nobody to tell.
static enum atsi_status flush_ready(struct atsi_output_impl *x, bool *reader_gone, struct atsi_error *err) {
    enum atsi_status status = x->ready.size ? atsi_bytes_append(&x->shown, x->ready.data, x->ready.size, err) : ATSI_OK;
    if (x->mode == MODE_TEXT && x->ready.size)
        if (fwrite(x->ready.data, 1, x->ready.size, stdout) != x->ready.size || fflush(stdout)) *reader_gone = true;
    if (*reader_gone && errno != EPIPE) status = atsi_fail(err, ATSI_FAILED, "standard output: %s", strerror(errno));
    x->ready.size = 0;
    return status;
}

static enum atsi_status push_text(struct atsi_output_impl *x, uint32_t id, struct atsi_error *err) {
    size_t size;
    const char *piece = atsi_tokenizer_piece(x->tokenizer, id, &size);
    if (atsi_tokenizer_kind(x->tokenizer, id) == ATSI_TOKEN_CONTROL) return ATSI_OK; // marks of a format, not text
    x->kept.size = 0;
    ATSI_TRY(atsi_stop_match_push(&x->stop, piece, size, &x->kept, err));
    return atsi_utf8_hold_push(&x->hold, x->kept.data, x->kept.size, &x->ready, err);
}

static enum atsi_status push_id(struct atsi_output_impl *x, uint32_t id, bool *reader_gone, struct atsi_error *err) {
    if (x->mode == MODE_JSON) ATSI_TRY(atsi_token_list_push(&x->ids, id, err));
    if (x->mode == MODE_IDS) {
        if (printf("%s%u", x->any_id ? " " : "", id) < 0 || fflush(stdout)) *reader_gone = true;
        x->any_id = true;
    }
    return ATSI_OK;
}

static bool take_token(struct atsi_output_impl *x, uint32_t id, bool is_text, struct atsi_error *err,
                       enum atsi_status *status) {
    bool reader_gone = false;
    *status = push_id(x, id, &reader_gone, err);
    if (*status == ATSI_OK && is_text) *status = push_text(x, id, err);
    if (*status == ATSI_OK) *status = flush_ready(x, &reader_gone, err);
    return *status == ATSI_OK && !reader_gone && !x->stop.stopped;
}

bool atsi_output_token(void *context, int32_t id, struct atsi_error *err, enum atsi_status *status) {
    struct atsi_output_impl *x = ((struct atsi_output *)context)->impl;
    return take_token(x, (uint32_t)id, x->tokenizer != NULL, err, status);
}

bool atsi_output_silent_token(void *context, int32_t id, struct atsi_error *err, enum atsi_status *status) {
    return take_token(((struct atsi_output *)context)->impl, (uint32_t)id, false, err, status);
}

struct atsi_str atsi_output_shown(const struct atsi_output *out) {
    return (struct atsi_str){out->impl->shown.data, out->impl->shown.size};
}

// ---- the end ------------------------------------------------------------------------------------------------------

static bool add_result(cJSON *root, const struct atsi_output_impl *x, const struct atsi_generate_result *r) {
    cJSON *ids = cJSON_AddArrayToObject(root, "ids");
    for (size_t i = 0; ids && i < x->ids.n_ids; i++)
        if (!cJSON_AddItemToArray(ids, cJSON_CreateNumber(x->ids.ids[i]))) return false;
    return ids && cJSON_AddStringToObject(root, "finish", atsi_finish_name(r->finish)) &&
           atsi_json_put(root, "n_prompt", r->n_prompt) && atsi_json_put(root, "n_generated", r->n_generated) &&
           atsi_json_put_figure(root, "prefill_us", r->prefill_us) &&
           atsi_json_put_figure(root, "decode_us", r->decode_us);
}

// The text as a C string. cJSON has no way to write U+0000; U+FFFD stands for it.
static enum atsi_status text_for_json(const struct atsi_output_impl *x, struct atsi_bytes *out,
                                      struct atsi_error *err) {
    for (size_t i = 0; i < x->shown.size; i++) {
        bool is_nul = x->shown.data[i] == 0;
        ATSI_TRY(atsi_bytes_append(out, is_nul ? "\xEF\xBF\xBD" : &x->shown.data[i], is_nul ? 3 : 1, err));
    }
    return atsi_bytes_append(out, "", 1, err);
}

static enum atsi_status print_json(const struct atsi_output_impl *x, const struct atsi_generate_result *r,
                                   struct atsi_error *err) {
    struct atsi_bytes shown = {0};
    ATSI_TRY(text_for_json(x, &shown, err));
    cJSON *root = cJSON_CreateObject();
    bool good = root && cJSON_AddStringToObject(root, "text", shown.data) && add_result(root, x, r);
    atsi_bytes_free(&shown);
    return atsi_json_print(stdout, root, good, err);
}

enum atsi_status atsi_output_finish(struct atsi_output *out, const struct atsi_generate_result *result,
                                    struct atsi_error *err) {
    struct atsi_output_impl *x = out->impl;
    bool reader_gone = false;
    if (x->tokenizer) {
        x->kept.size = 0;
        ATSI_TRY(atsi_stop_match_finish(&x->stop, &x->kept, err));
        ATSI_TRY(atsi_utf8_hold_push(&x->hold, x->kept.data, x->kept.size, &x->ready, err));
        ATSI_TRY(atsi_utf8_hold_finish(&x->hold, &x->ready, err));
        ATSI_TRY(flush_ready(x, &reader_gone, err));
    }
    if (x->mode == MODE_JSON) return print_json(x, result, err);
    if (x->mode == MODE_IDS && x->any_id) putchar('\n');
    fflush(stdout); // ahead of what standard error says of the run, where both go to one file
    return ATSI_OK;
}

void atsi_output_free(struct atsi_output *out) {
    struct atsi_output_impl *x = out->impl;
    if (!x) return;
    atsi_stop_match_free(&x->stop);
    atsi_bytes_free(&x->kept);
    atsi_bytes_free(&x->ready);
    atsi_bytes_free(&x->shown);
    atsi_token_list_free(&x->ids);
    free(x);
    out->impl = NULL;
}
