// chat.h: a conversation with a model, turn by turn.
//
// For each answer the whole conversation is rendered; what the session already holds of it is kept (the longest common beginning),
// and only the rest is read. So a format that gives earlier answers back changed (without their thinking) costs a second reading of
// what follows the change, and the model always sees exactly what its format says.
#ifndef ATSI_RUNTIME_CHAT_H
#define ATSI_RUNTIME_CHAT_H

#include "runtime/chat_format.h"
#include "runtime/generate.h"
#include "runtime/options.h"

// Borrowed, all of it.
struct atsi_chat_host {
    const struct atsi_run_options *options;
    const struct atsi_model *model;
    struct atsi_session *session; // looks at *interrupted
    struct atsi_sampler *sampler;
    struct atsi_lookup *lookup;         // NULL: nothing is guessed
    volatile sig_atomic_t *interrupted; // the number of the signal that came, 0: none
    void (*listen)(void);               // clears *interrupted and makes the signals set it again
    atsi_on_logits *on_logits;          // of the tokens that are read before an answer; may be NULL
    void *logits_context;
};

// --chat-format, else the plan's. ATSI_BAD_INPUT, with the names there are, when it is not known or the model has none.
enum atsi_status atsi_chat_choose_format(const struct atsi_model *model, const struct atsi_run_options *o,
                                         const struct atsi_chat_format **out, struct atsi_error *err);

// The tokens of a conversation's first turn, with --system: what --chat --tokenize prints.
enum atsi_status atsi_chat_prompt(const struct atsi_model *model, const struct atsi_run_options *o, const char *text,
                                  size_t size, struct atsi_token_list *out, struct atsi_error *err);

// One turn with -p or -f, else one for each line of standard input, to its end or an interrupt at the prompt. An interrupt (SIGINT)
// during an answer ends that answer: what was generated stays in the conversation. Answers go to standard output. *total: sums over
// the turns; finish is ATSI_FINISH_INTERRUPT when an interrupt ended the chat, else that of the last turn. ATSI_BAD_INPUT when the chat format is not known, or the conversation outgrows the context.
enum atsi_status atsi_chat_run(const struct atsi_chat_host *host, struct atsi_generate_result *total,
                               struct atsi_error *err);

#endif
