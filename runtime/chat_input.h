// chat_input.h: the user's lines, from standard input.
#ifndef ATSI_RUNTIME_CHAT_INPUT_H
#define ATSI_RUNTIME_CHAT_INPUT_H

#include <signal.h>
#include <stdbool.h>

#include "runtime/text/bytes.h"

// Zero-initialise but for `idle`; free with atsi_chat_input_free.
struct atsi_chat_input {
    // Called four times a second while a line is waited for, which ends when it fails; may be NULL.
    enum atsi_status (*idle)(void *context, struct atsi_error *err);
    void *idle_context;
    struct atsi_bytes waiting; // read, not handed out
    bool ended;
};

// Waits for a line and puts it into `line` without its line break; prints a prompt on standard error when it waits at a terminal.
// *got is false at the end of input. A last line without a line break counts. ATSI_INTERRUPTED when a signal handler sets
// *interrupted, before the wait or in it.
enum atsi_status atsi_chat_read_line(struct atsi_chat_input *in, const volatile sig_atomic_t *interrupted,
                                     struct atsi_bytes *line, bool *got, struct atsi_error *err);
void atsi_chat_input_free(struct atsi_chat_input *in);

#endif
