#include "runtime/chat_render.h"

#include <string.h>

#include "formats/base/str.h"

void atsi_chat_message_free(struct atsi_chat_message *message) {
    atsi_bytes_free(&message->text);
    atsi_token_list_free(&message->ids);
}

// A prompt that grows. Text is collected between special tokens and encoded in one go, since words may cross the border of
// format and message.
struct prompt {
    const struct atsi_chat_format *format;
    const struct atsi_tokenizer *tokenizer;
    char date[32];
    struct atsi_bytes text;
    struct atsi_token_list *out;
};

static enum atsi_status flush(struct prompt *p, struct atsi_error *err) {
    const struct atsi_token_list *out = p->out;
    size_t skip =
        out->n_ids ? atsi_tokenizer_swallowed(p->tokenizer, out->ids[out->n_ids - 1], p->text.data, p->text.size) : 0;
    enum atsi_status status =
        atsi_tokenizer_encode(p->tokenizer, p->text.data + skip, p->text.size - skip, 0, p->out, err);
    p->text.size = 0;
    return status;
}

static enum atsi_status add_str(struct prompt *p, struct atsi_str text, struct atsi_error *err) {
    return text.size ? atsi_bytes_append(&p->text, text.data, text.size, err) : ATSI_OK;
}

// The mark that `text` begins with: its token, or ATSI_TOKEN_NONE.
static uint32_t mark_at(const struct prompt *p, const char *text, size_t *size) {
    for (int i = 0; i < ATSI_CHAT_MAX_MARKS && p->format->marks[i]; i++) {
        *size = strlen(p->format->marks[i]);
        if (!strncmp(text, p->format->marks[i], *size))
            return atsi_tokenizer_find_special(p->tokenizer, p->format->marks[i]);
    }
    return ATSI_TOKEN_NONE;
}

// A text of the format: its marks become tokens, "{date}" the date.
static enum atsi_status add_format(struct prompt *p, const char *text, struct atsi_error *err) {
    static const char hole[] = "{date}";
    while (*text) {
        size_t size;
        uint32_t mark = mark_at(p, text, &size);
        if (mark != ATSI_TOKEN_NONE) {
            ATSI_TRY(flush(p, err));
            ATSI_TRY(atsi_token_list_push(p->out, mark, err));
        } else if (!strncmp(text, hole, sizeof hole - 1)) {
            size = sizeof hole - 1;
            ATSI_TRY(add_str(p, atsi_str_of(p->date), err));
        } else {
            size = 1;
            ATSI_TRY(atsi_bytes_append(&p->text, text, 1, err));
        }
        text += size;
    }
    return ATSI_OK;
}

static enum atsi_status add_ids(struct prompt *p, const struct atsi_token_list *ids, struct atsi_error *err) {
    ATSI_TRY(flush(p, err));
    for (size_t i = 0; i < ids->n_ids; i++) ATSI_TRY(atsi_token_list_push(p->out, ids->ids[i], err));
    return ATSI_OK;
}

// ---- texts as a format gives them -----------------------------------------------------------------------------------

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static struct atsi_str trim(struct atsi_str s) {
    for (; s.size && is_space(s.data[0]); s.size--) s.data++;
    while (s.size && is_space(s.data[s.size - 1])) s.size--;
    return s;
}

// What follows the last </think>, without the line breaks before it; all of it when there is none.
static struct atsi_str without_thinking(struct atsi_str s) {
    static const char close[] = "</think>";
    const size_t n = sizeof close - 1;
    for (size_t at = s.size; at >= n; at--) {
        if (memcmp(s.data + at - n, close, n) != 0) continue;
        s = (struct atsi_str){s.data + at, s.size - at};
        for (; s.size && *s.data == '\n'; s.size--) s.data++;
        return s;
    }
    return s;
}

static struct atsi_str text_as_given(const struct prompt *p, const struct atsi_chat_message *m) {
    struct atsi_str text = {m->text.data, m->text.size};
    if (m->role == ATSI_CHAT_ASSISTANT && (p->format->flags & ATSI_CHAT_DROPS_THINKING)) text = without_thinking(text);
    return p->format->trimmed & 1u << m->role ? trim(text) : text;
}

// ---- turns ----------------------------------------------------------------------------------------------------------

// Whether an answer is given back exactly as it was generated, after `reply`: then its own tokens can stand for it.
static bool is_as_generated(const struct prompt *p, const struct atsi_chat_message *m, struct atsi_str given) {
    const char *open = p->format->turns[ATSI_CHAT_ASSISTANT].open, *reply = p->format->reply;
    size_t n_reply = strlen(reply), n_open = strlen(open);
    if (m->ids.n_ids == 0 || n_open < n_reply || memcmp(open, reply, n_reply) != 0) return false;
    size_t n_rest = n_open - n_reply;
    return m->text.size == n_rest + given.size && !memcmp(m->text.data, open + n_reply, n_rest) &&
           (given.size == 0 || !memcmp(m->text.data + n_rest, given.data, given.size));
}

static enum atsi_status add_answer(struct prompt *p, const struct atsi_chat_message *m, struct atsi_error *err) {
    const struct atsi_chat_turn *turn = &p->format->turns[ATSI_CHAT_ASSISTANT];
    struct atsi_str given = text_as_given(p, m);
    if (is_as_generated(p, m, given)) {
        ATSI_TRY(add_format(p, p->format->reply, err));
        ATSI_TRY(add_ids(p, &m->ids, err));
    } else {
        ATSI_TRY(add_format(p, turn->open, err));
        ATSI_TRY(m->ids.n_ids && (p->format->flags & ATSI_CHAT_CHANNELS) ? add_ids(p, &m->ids, err)
                                                                         : add_str(p, given, err));
    }
    return add_format(p, turn->close, err);
}

static enum atsi_status add_turn(struct prompt *p, enum atsi_chat_role role, struct atsi_str before,
                                 struct atsi_str text, struct atsi_error *err) {
    ATSI_TRY(add_format(p, p->format->turns[role].open, err));
    ATSI_TRY(add_str(p, before, err));
    if (before.size) ATSI_TRY(add_format(p, "\n\n", err));
    ATSI_TRY(add_str(p, text, err));
    return add_format(p, p->format->turns[role].close, err);
}

// The index of the user's message that carries the system text, or n when a turn of its own does.
static size_t system_carrier(const struct atsi_chat_format *f, const struct atsi_chat_message *messages, size_t n) {
    size_t carrier = n;
    for (size_t i = 0; i < n; i++) {
        if (messages[i].role != ATSI_CHAT_USER) continue;
        if (f->flags & ATSI_CHAT_SYSTEM_IN_LAST_USER) carrier = i;
        if ((f->flags & ATSI_CHAT_SYSTEM_IN_FIRST_USER) && carrier == n) carrier = i;
    }
    return carrier;
}

static enum atsi_status add_conversation(struct prompt *p, const struct atsi_chat_message *messages, size_t n,
                                         struct atsi_error *err) {
    const struct atsi_chat_format *f = p->format;
    bool has_system = n && messages[0].role == ATSI_CHAT_SYSTEM;
    struct atsi_str system = {0}, none = {0};
    if (has_system)
        system = text_as_given(p, &messages[0]);
    else if (f->default_system)
        system = atsi_str_of(f->default_system);
    size_t carrier = system_carrier(f, messages, n);

    ATSI_TRY(add_format(p, f->begin, err));
    if (carrier == n && (has_system || f->default_system)) ATSI_TRY(add_turn(p, ATSI_CHAT_SYSTEM, none, system, err));
    for (size_t i = has_system; i < n; i++) {
        if (messages[i].role == ATSI_CHAT_ASSISTANT)
            ATSI_TRY(add_answer(p, &messages[i], err));
        else
            ATSI_TRY(add_turn(p, ATSI_CHAT_USER, i == carrier ? system : none, text_as_given(p, &messages[i]), err));
    }
    ATSI_TRY(add_format(p, f->reply, err));
    return flush(p, err);
}

enum atsi_status atsi_chat_render(const struct atsi_chat_format *format, const struct atsi_tokenizer *tokenizer,
                                  time_t now, const struct atsi_chat_message *messages, size_t n_messages,
                                  struct atsi_token_list *out, struct atsi_error *err) {
    struct prompt p = {.format = format, .tokenizer = tokenizer, .out = out};
    struct tm local;
    if (format->date_format && localtime_r(&now, &local)) strftime(p.date, sizeof p.date, format->date_format, &local);
    uint32_t bos = atsi_tokenizer_bos(tokenizer);
    bool adds_bos = (format->flags & ATSI_CHAT_BOS) || atsi_tokenizer_adds_bos(tokenizer);
    size_t start = out->n_ids;
    if (adds_bos && bos != ATSI_TOKEN_NONE) ATSI_TRY(atsi_token_list_push(out, bos, err));
    enum atsi_status status = add_conversation(&p, messages, n_messages, err);
    if (status == ATSI_OK && out->n_ids > start && out->ids[start] == bos) atsi_token_list_drop_double(out, start);
    atsi_bytes_free(&p.text);
    return status;
}
