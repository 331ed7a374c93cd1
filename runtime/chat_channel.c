#include "runtime/chat_channel.h"

#include <string.h>

struct atsi_chat_channel atsi_chat_channel_start(const struct atsi_tokenizer *tokenizer) {
    return (struct atsi_chat_channel){.tokenizer = tokenizer,
                                      .channel_id = atsi_tokenizer_find_special(tokenizer, "<|channel|>"),
                                      .message_id = atsi_tokenizer_find_special(tokenizer, "<|message|>"),
                                      .start_id = atsi_tokenizer_find_special(tokenizer, "<|start|>"),
                                      .end_id = atsi_tokenizer_find_special(tokenizer, "<|end|>")};
}

static void add_to_name(struct atsi_chat_channel *c, uint32_t id) {
    size_t size;
    const char *piece = atsi_tokenizer_piece(c->tokenizer, id, &size);
    for (size_t i = 0; i < size && c->n_name < sizeof c->name; i++) c->name[c->n_name++] = piece[i];
}

// The name ends at the first space: a recipient or a content type may follow.
static bool is_final(const struct atsi_chat_channel *c) {
    static const char final[] = "final";
    size_t n = sizeof final - 1;
    return c->n_name >= n && !memcmp(c->name, final, n) && (c->n_name == n || c->name[n] == ' ');
}

bool atsi_chat_channel_shows(struct atsi_chat_channel *c, uint32_t id) {
    if (id == c->channel_id) {
        c->state = ATSI_CHANNEL_NAME;
        c->n_name = 0;
    } else if (id == c->message_id) {
        c->state = c->state == ATSI_CHANNEL_NAME && is_final(c) ? ATSI_CHANNEL_FINAL : ATSI_CHANNEL_HIDDEN;
    } else if (id == c->start_id || id == c->end_id) {
        c->state = ATSI_CHANNEL_NONE;
    } else if (c->state == ATSI_CHANNEL_NAME) {
        add_to_name(c, id);
    } else {
        return c->state == ATSI_CHANNEL_FINAL;
    }
    return false;
}
