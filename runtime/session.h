// session.h: one text as it grows: positions, chunked prefill, logits. Owns its executor.
#ifndef ATSI_RUNTIME_SESSION_H
#define ATSI_RUNTIME_SESSION_H

#include <signal.h>

#include "runtime/dispatcher.h"
#include "runtime/exchange.h"
#include "runtime/executor.h"
#include "runtime/rescheduler.h"
#include "runtime/reserve.h"

struct atsi_session {
    struct atsi_executor *executor;
    struct atsi_dispatcher *dispatcher;
    struct atsi_reserve *reserve; // looked at between rounds; NULL: the units' homes never change
    struct atsi_rescheduler rescheduler;
    struct atsi_exchange *exchange; // NULL: no experts are resident one by one
    const struct atsi_plan *plan;
    uint32_t n_ctx;
    uint32_t chunk;                    // tokens of a round, at most the plan's
    uint32_t n_past;                   // tokens in the states
    uint32_t n_token_ids;              // ids at or above it are refused
    const volatile sig_atomic_t *stop; // looked at between rounds; NULL: never stops
    const float *
        last_logits; // [n_vocab] after the newest token, where the executor left them: until tokens are appended or taken back
    int32_t *output_rows; // [chunk] of the coming round, kept so that a round allocates nothing
};

struct atsi_session_params {
    const struct atsi_executor_params *executor; // n_ctx 0: the plan's; above it: ATSI_BAD_INPUT
    struct atsi_dispatcher *dispatcher;          // taken over: freed with the session, or when it cannot be created
    struct atsi_rescheduler_params rescheduling;
    struct atsi_exchange_params
        exchange;   // but for executor and trace; weights NULL, or without such experts: nothing is exchanged
    uint32_t chunk; // 0: the plan's; a larger one than the plan's is cut to it
    const volatile sig_atomic_t *stop; // looked at between rounds; NULL: never stops
};
enum atsi_status atsi_session_create(const struct atsi_session_params *params, struct atsi_session **out,
                                     struct atsi_error *err);
// Takes the units' homes from the weights, now and whenever the reserve (borrowed) moves them.
void atsi_session_follow(struct atsi_session *s, struct atsi_reserve *reserve);
// For the time between two texts: other programs may need the card's memory then, too.
enum atsi_status atsi_session_idle(struct atsi_session *s, struct atsi_error *err);
void atsi_session_free(struct atsi_session *s); // NULL fine

// Appends tokens (n >= 1) and leaves the logits after the last one in last_logits. With `on_logits` every token's logits are
// handed out too: first_output counts from the first token of this call. ATSI_BAD_INPUT when an id is out of range or the
// context would overflow (both counts named), ATSI_INTERRUPTED when *stop was set between rounds.
enum atsi_status atsi_session_append(struct atsi_session *s, const int32_t *ids, uint32_t n, atsi_on_logits *on_logits,
                                     void *context, struct atsi_error *err);
// How many tokens may be read at once and taken back again, in a round like those of single tokens; 0: none, since states cannot go back, or
// experts are divided token by token.
uint32_t atsi_session_most_checked(const struct atsi_session *s);
// Reads n tokens (1 to that many) so. *rows: the logits behind each of them, [n][n_vocab], until tokens are appended.
enum atsi_status atsi_session_check(struct atsi_session *s, const int32_t *ids, uint32_t n, const float **rows,
                                    struct atsi_error *err);
// The prompt has been read, and at most n_tokens will be appended one by one: what pays for itself only with many tokens may be done
// ahead of the next one. 0: the next prompt begins.
void atsi_session_expect(struct atsi_session *s, uint32_t n_tokens);
// ATSI_FAILED naming the token position and the unit when last_logits are not finite.
enum atsi_status atsi_session_check_logits(struct atsi_session *s, struct atsi_error *err);

// Keeps the first n tokens only (n <= n_past). Texts with recurrent states can only go back to 0: returns false otherwise.
bool atsi_session_truncate(struct atsi_session *s, uint32_t n);

#endif
