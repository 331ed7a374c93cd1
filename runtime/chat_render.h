// chat_render.h: a conversation as the tokens that the model reads.
#ifndef ATSI_RUNTIME_CHAT_RENDER_H
#define ATSI_RUNTIME_CHAT_RENDER_H

#include <time.h>

#include "runtime/chat_format.h"

struct atsi_chat_message {
    enum atsi_chat_role role;
    struct atsi_bytes text;
    // An answer's own tokens, which decode to `text`; they are used again as long as the format gives the text back unchanged.
    // Empty: `text` is encoded.
    struct atsi_token_list ids;
};
void atsi_chat_message_free(struct atsi_chat_message *message);

// Appends the conversation, then what opens the next answer, to `out`. A system message can only be the first. Begin-of-sequence
// stands there at most once. Special tokens come from the format alone: control tokens written in a message's text stay ordinary
// text, and a word may be merged across the border of format and text as the model's own template has it.
// `now` is the date that some formats state (local time).
enum atsi_status atsi_chat_render(const struct atsi_chat_format *format, const struct atsi_tokenizer *tokenizer,
                                  time_t now, const struct atsi_chat_message *messages, size_t n_messages,
                                  struct atsi_token_list *out, struct atsi_error *err);

#endif
