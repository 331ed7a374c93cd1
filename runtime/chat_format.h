// chat_format.h: the chat formats as data: what stands before and after each turn.
//
// A format is what the model's own template writes for plain conversations (no tools, no images). The planner chooses one by the
// template's text (planner/chat_format.h); docs/chat.md says what was decided where templates differ.
#ifndef ATSI_RUNTIME_CHAT_FORMAT_H
#define ATSI_RUNTIME_CHAT_FORMAT_H

#include "runtime/tokenizer/tokenizer.h"

enum atsi_chat_role {
    ATSI_CHAT_SYSTEM,
    ATSI_CHAT_USER,
    ATSI_CHAT_ASSISTANT,
    ATSI_CHAT_N_ROLES
};

enum {
    ATSI_CHAT_MAX_MARKS = 6
};

enum atsi_chat_flag {
    ATSI_CHAT_BOS = 1,                  // begins with begin-of-sequence even where the vocabulary does not ask for it
    ATSI_CHAT_DROPS_THINKING = 2,       // earlier answers are given without what precedes their last </think>
    ATSI_CHAT_SYSTEM_IN_FIRST_USER = 4, // no system turn: its text and an empty line precede the first user's text
    ATSI_CHAT_SYSTEM_IN_LAST_USER = 8,  // the same with the newest user's text
    ATSI_CHAT_CHANNELS = 16             // answers are messages on channels (runtime/chat_channel.h)
};

struct atsi_chat_turn {
    const char *open, *close;
};

struct atsi_chat_format {
    const char *name;
    unsigned flags;
    unsigned trimmed;  // bit (1 << role): white space at both ends of such a text is dropped
    const char *begin; // before the first turn
    struct atsi_chat_turn turns[ATSI_CHAT_N_ROLES];
    const char *reply;          // after the last turn: opens the answer that is to be generated
    const char *default_system; // stands for a system text that is not given; NULL: then there is no system turn
    const char *date_format;    // strftime's, for each "{date}" in begin and turns; NULL: there is none
    const char *marks[ATSI_CHAT_MAX_MARKS]; // special tokens in these texts; NULL ends them
};

const struct atsi_chat_format *atsi_chat_format_find(const char *name); // NULL: there is none of this name
// "chatml, qwen2, ...": all names, for messages; with a vocabulary only those whose special tokens it has, "" when there is none.
void atsi_chat_format_names(const struct atsi_tokenizer *fitting, char *out, size_t cap);

// The first mark that the vocabulary lacks (then its text stands in the prompt), or NULL: a sign that the format is not the model's.
const char *atsi_chat_format_missing_mark(const struct atsi_chat_format *format,
                                          const struct atsi_tokenizer *tokenizer);

#endif
