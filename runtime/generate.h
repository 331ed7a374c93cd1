// generate.h: the loop from a prompt to its continuation.
#ifndef ATSI_RUNTIME_GENERATE_H
#define ATSI_RUNTIME_GENERATE_H

#include "runtime/lookup.h"
#include "runtime/model.h"
#include "runtime/sampler.h"
#include "runtime/session.h"

enum atsi_finish {
    ATSI_FINISH_EOS,
    ATSI_FINISH_LENGTH,
    ATSI_FINISH_CONTEXT,
    ATSI_FINISH_STOP,
    ATSI_FINISH_INTERRUPT
};
const char *atsi_finish_name(enum atsi_finish finish); // "eos", "length" (also for a full context), "stop", "interrupt"

struct atsi_generate_params {
    int64_t n_predict; // -1: no limit
    bool ignore_eos;
    // Takes each generated token (never the one that ends the sequence). Returns false to stop (a stop text was met).
    bool (*on_token)(void *context, int32_t id, struct atsi_error *err, enum atsi_status *status);
    void *context;
    // The session's text so far; goes on with the prompt and what is generated. n_most is below atsi_session_most_checked. NULL: nothing
    // is guessed.
    struct atsi_lookup *lookup;
};

struct atsi_generate_result {
    enum atsi_finish finish;
    int32_t end_id; // the token that ended the text (ATSI_FINISH_EOS), else -1
    uint32_t n_prompt, n_generated;
    double prefill_us, decode_us; // decode: of the tokens after the first
};

// Reads the prompt (n >= 1) into the session and generates. The end-of-sequence token is read into the session too when it
// ends the text, so that a next turn finds the text whole. ATSI_INTERRUPTED never comes back: what was generated counts, and
// result->finish says it.
enum atsi_status atsi_generate(const struct atsi_model *model, struct atsi_session *session,
                               struct atsi_sampler *sampler, const int32_t *prompt, uint32_t n,
                               atsi_on_logits *on_logits, void *logits_context,
                               const struct atsi_generate_params *params, struct atsi_generate_result *result,
                               struct atsi_error *err);

#endif
