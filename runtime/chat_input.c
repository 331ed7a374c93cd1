#include "runtime/chat_input.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Waits for input. Signals are let through in the wait only, so that none is lost between looking at *interrupted and waiting.
static enum atsi_status wait_for_input(const struct atsi_chat_input *in, const volatile sig_atomic_t *interrupted,
                                       struct atsi_error *err) {
    static const struct timespec quarter = {.tv_nsec = 250000000};
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    enum atsi_status status = ATSI_OK;
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    int n = 0, cause = 0;
    while (!*interrupted && n <= 0 && (cause == 0 || cause == EINTR) && status == ATSI_OK) {
        n = ppoll(&input, 1, in->idle ? &quarter : NULL, &before);
        cause = n < 0 ? errno : 0;
        if (n == 0 && in->idle) status = in->idle(in->idle_context, err);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (*interrupted) return atsi_fail(err, ATSI_INTERRUPTED, "interrupted");
    ATSI_TRY(status);
    return n > 0 ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "standard input: %s", strerror(cause));
}

static enum atsi_status read_more(struct atsi_chat_input *in, const volatile sig_atomic_t *interrupted,
                                  struct atsi_error *err) {
    char piece[4096];
    ATSI_TRY(wait_for_input(in, interrupted, err));
    ssize_t n = read(STDIN_FILENO, piece, sizeof piece);
    if (n < 0) return errno == EINTR ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "standard input: %s", strerror(errno));
    in->ended = n == 0;
    return n ? atsi_bytes_append(&in->waiting, piece, (size_t)n, err) : ATSI_OK;
}

// Moves the first `size` bytes of what waits into `line`, and forgets `skipped` more.
static enum atsi_status hand_out(struct atsi_chat_input *in, size_t size, size_t skipped, struct atsi_bytes *line,
                                 struct atsi_error *err) {
    if (size) ATSI_TRY(atsi_bytes_append(line, in->waiting.data, size, err));
    in->waiting.size -= size + skipped;
    if (in->waiting.size) memmove(in->waiting.data, in->waiting.data + size + skipped, in->waiting.size);
    return ATSI_OK;
}

enum atsi_status atsi_chat_read_line(struct atsi_chat_input *in, const volatile sig_atomic_t *interrupted,
                                     struct atsi_bytes *line, bool *got, struct atsi_error *err) {
    line->size = 0;
    *got = true;
    if (isatty(STDIN_FILENO)) fputs("> ", stderr);
    for (size_t seen = 0;;) {
        const char *end =
            in->waiting.size > seen ? memchr(in->waiting.data + seen, '\n', in->waiting.size - seen) : NULL;
        if (end) return hand_out(in, (size_t)(end - in->waiting.data), 1, line, err);
        seen = in->waiting.size;
        if (in->ended) {
            *got = seen > 0;
            return hand_out(in, seen, 0, line, err);
        }
        ATSI_TRY(read_more(in, interrupted, err));
    }
}

void atsi_chat_input_free(struct atsi_chat_input *in) { atsi_bytes_free(&in->waiting); }
