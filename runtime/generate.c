#include "runtime/generate.h"

#include <string.h>

#include "formats/base/clock.h"

const char *atsi_finish_name(enum atsi_finish finish) {
    // A full context is a length too: what the user sees is that the text was cut.
    static const char *const names[] = {"eos", "length", "length", "stop", "interrupt"};
    return names[finish];
}

// Picks the next token and decides whether it belongs to the text.
static enum atsi_status next_token(const struct atsi_model *m, struct atsi_session *s, struct atsi_sampler *sampler,
                                   const struct atsi_generate_params *params, int32_t *id, bool *ends,
                                   struct atsi_error *err) {
    if (atsi_sampler_pick(sampler, s->last_logits, id, err) != ATSI_OK) {
        ATSI_TRY(atsi_session_check_logits(s, err)); // names the unit, which is worth another look at them only now
        return ATSI_FAILED;
    }
    atsi_sampler_accept(sampler, *id);
    *ends = !params->ignore_eos && m->tokenizer && atsi_tokenizer_ends_generation(m->tokenizer, (uint32_t)*id);
    return ATSI_OK;
}

static bool is_interrupted(const struct atsi_session *s) { return s->stop && *s->stop; }

static enum atsi_status decode(const struct atsi_model *m, struct atsi_session *s, struct atsi_sampler *sampler,
                               const struct atsi_generate_params *params, struct atsi_generate_result *r,
                               struct atsi_error *err) {
    double started_us = 0;
    for (;;) {
        int32_t id;
        bool ends;
        enum atsi_status status = ATSI_OK;
        if (params->n_predict >= 0 && r->n_generated >= params->n_predict) {
            r->finish = ATSI_FINISH_LENGTH;
            break;
        }
        if (is_interrupted(s)) {
            r->finish = ATSI_FINISH_INTERRUPT;
            break;
        }
        ATSI_TRY(next_token(m, s, sampler, params, &id, &ends, err));
        if (r->n_generated == 0) started_us = atsi_clock_us();
        if (ends) {
            r->finish = ATSI_FINISH_EOS;
            status = s->n_past < s->n_ctx ? atsi_session_append(s, &id, 1, NULL, NULL, err) : ATSI_OK;
            if (status == ATSI_INTERRUPTED) continue;
            ATSI_TRY(status);
            r->end_id = id;
            break;
        }
        r->n_generated++;
        bool goes_on = params->on_token(params->context, id, err, &status);
        ATSI_TRY(status);
        r->finish = ATSI_FINISH_STOP;
        if (!goes_on) break;
        r->finish = ATSI_FINISH_CONTEXT;
        if (s->n_past == s->n_ctx) break;
        status = r->n_generated == params->n_predict ? ATSI_OK : atsi_session_append(s, &id, 1, NULL, NULL, err);
        if (status == ATSI_INTERRUPTED) continue; // the loop's head ends it
        ATSI_TRY(status);
    }
    r->decode_us = r->n_generated > 0 ? atsi_clock_us() - started_us : 0;
    return ATSI_OK;
}

// The last token is not read into the session.
static uint32_t tokens_to_read(const struct atsi_session *s, const struct atsi_generate_params *params) {
    uint32_t n_left = s->n_ctx - s->n_past;
    if (params->n_predict < 0 || params->n_predict > n_left) return n_left;
    return params->n_predict > 0 ? (uint32_t)params->n_predict - 1 : 0;
}

enum atsi_status atsi_generate(const struct atsi_model *model, struct atsi_session *session,
                               struct atsi_sampler *sampler, const int32_t *prompt, uint32_t n,
                               atsi_on_logits *on_logits, void *logits_context,
                               const struct atsi_generate_params *params, struct atsi_generate_result *result,
                               struct atsi_error *err) {
    double started_us = atsi_clock_us();
    memset(result, 0, sizeof *result);
    result->n_prompt = n;
    result->end_id = -1;
    for (uint32_t i = 0; i < n; i++) atsi_sampler_accept(sampler, prompt[i]);
    atsi_session_expect(session, 0);
    enum atsi_status status = atsi_session_append(session, prompt, n, on_logits, logits_context, err);
    result->prefill_us = atsi_clock_us() - started_us;
    if (status == ATSI_INTERRUPTED) {
        result->finish = ATSI_FINISH_INTERRUPT;
        return ATSI_OK;
    }
    ATSI_TRY(status);
    // Picking a token checks the logits; where none is to be picked they are checked here.
    if (params->n_predict == 0) ATSI_TRY(atsi_session_check_logits(session, err));
    atsi_session_expect(session, tokens_to_read(session, params));
    return decode(model, session, sampler, params, result, err);
}
