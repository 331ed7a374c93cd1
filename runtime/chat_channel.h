// chat_channel.h: which tokens of a harmony answer are its text.
//
// Such an answer is a row of messages: <|channel|>NAME<|message|>...<|end|><|start|>assistant<|channel|>NAME<|message|>... to
// <|return|>. What stands on the channel "final" is for the user; "analysis" and "commentary" are the model's own.
#ifndef ATSI_RUNTIME_CHAT_CHANNEL_H
#define ATSI_RUNTIME_CHAT_CHANNEL_H

#include "runtime/tokenizer/tokenizer.h"

struct atsi_chat_channel {
    const struct atsi_tokenizer *tokenizer;
    uint32_t channel_id, message_id, start_id, end_id;
    enum {
        ATSI_CHANNEL_NONE,
        ATSI_CHANNEL_NAME,
        ATSI_CHANNEL_HIDDEN,
        ATSI_CHANNEL_FINAL
    } state;
    char name[16]; // beginning of the name as far as it was seen
    size_t n_name;
};

// At the beginning of an answer. The tokenizer is borrowed.
struct atsi_chat_channel atsi_chat_channel_start(const struct atsi_tokenizer *tokenizer);
// Takes the answer's next token. True when it is text for the user.
bool atsi_chat_channel_shows(struct atsi_chat_channel *c, uint32_t id);

#endif
