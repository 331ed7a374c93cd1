// exchange.h: which experts are hot differs from text to text: between rounds those that are resident one by one are exchanged for those
// that the routers have chosen lately.
//
// Of the exchanges ahead of ordinary rounds those of many rounds together are bounded by a part of the time that these rounds take; what
// has not been used may be, in some rounds, up to several times that part. Behind a prompt, ahead of the second token, whatever is
// expected to save more time in the tokens to come than its copy takes is exchanged at once (a *large* exchange); there are
// further looks for such after 32, 64, 128, ... tokens, since a short prompt says little.
//
// Copies and the device's new tables go into the compute stream ahead of the coming round, and the host's tables change before it: no reader
// sees half of an exchange. Nobody waits, but for a large exchange. Rounds of one token find experts by the tables alone; rounds of
// more bring what was not resident when they were prepared, so experts change places ahead of rounds of one token only, after which
// those of more are always prepared anew.
#ifndef ATSI_RUNTIME_EXCHANGE_H
#define ATSI_RUNTIME_EXCHANGE_H

#include <stdio.h>

#include "runtime/executor.h"
#include "runtime/weights.h"

struct atsi_exchange;

struct atsi_exchange_params {
    struct atsi_weights *weights;       // whose experts are exchanged; borrowed, as all of these
    const struct atsi_routing *routing; // counts what is chosen
    struct atsi_executor *executor;
    double part;              // of the rounds' time that copies may take, by the plan's times; 0: 0.02
    double sigmas;            // wants.h; 0: 2.5
    bool never;               // what is chosen is counted, and nothing is exchanged
    bool never_large;         // no large exchanges
    struct atsi_trace *trace; // NULL: none
};

enum atsi_status atsi_exchange_create(const struct atsi_exchange_params *params, struct atsi_exchange **out,
                                      struct atsi_error *err);
void atsi_exchange_free(struct atsi_exchange *x); // NULL fine; no round is under way

// So many tokens will follow one by one, at most: large exchanges count on them. 0: not known, and none (a prompt is being read). x NULL is fine.
void atsi_exchange_expect(struct atsi_exchange *x, uint32_t n_tokens);
// Ahead of a round of one token, before it is seen to that an assignment for such rounds is at work: behind a prompt a large exchange is
// begun if one pays, and hit rates are what it will make of them.
enum atsi_status atsi_exchange_before_text(struct atsi_exchange *x, uint32_t n_tokens, struct atsi_error *err);
// Once the round's assignment is at work. x NULL is fine in all of these.
enum atsi_status atsi_exchange_before_round(struct atsi_exchange *x, uint32_t n_tokens, struct atsi_error *err);
// A round of n_tokens is over and took round_us.
void atsi_exchange_after_round(struct atsi_exchange *x, uint32_t n_tokens, double round_us);

struct atsi_large_exchanges {
    uint32_t n, n_exchanged; // times, experts
    uint64_t bytes;
    double took_us, longest_us;             // all together; one
    double hit_rate_before, hit_rate_after; // as expected before the first and after the last one
};
struct atsi_exchange_figures {
    uint32_t n_resident, n_experts; // over all routers
    double hit_rate,
        hit_rate_lately; // of what was chosen, the part that was resident: since the start; with older choices counting less
    double expected; // what the plan expects
    uint64_t resident_bytes, exchanged_bytes;
    uint32_t n_exchanged; // large ones too
    struct atsi_large_exchanges large;
};
struct atsi_exchange_figures atsi_exchange_figures(const struct atsi_exchange *x);
void atsi_exchange_report(FILE *f, const struct atsi_exchange *x); // --stats: a line, and one of large exchanges

#endif
