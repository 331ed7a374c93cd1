#include "runtime/generate.h"

#include <string.h>

#include "formats/base/clock.h"

const char *atsi_finish_name(enum atsi_finish finish) {
    // A full context is a length too: what the user sees is that the text was cut.
    static const char *const names[] = {"eos", "length", "length", "stop", "interrupt"};
    return names[finish];
}

// Tokens that stand in the session ahead of the text: guesses, and the logits behind what was read with them.
struct ahead {
    int32_t ids[1 + ATSI_LOOKUP_MOST]; // the newest token, then the guesses
    uint32_t n, n_right;               // guesses; of them, the text's by now
    bool is_unchecked;                 // n is 0, but ids[1] is a guess that was not worth it
    const float *rows;                 // [1 + n][n_vocab]
};

struct generation {
    const struct atsi_model *model;
    struct atsi_session *session;
    struct atsi_sampler *sampler;
    const struct atsi_generate_params *params;
    struct ahead ahead;
};

// Tokens of the text that the session holds.
static uint32_t n_read(const struct generation *g) { return g->session->n_past - (g->ahead.n - g->ahead.n_right); }

// Wrong guesses leave the session.
static void drop_guesses(struct generation *g) {
    if (g->ahead.n > g->ahead.n_right)
        (void)atsi_session_truncate(g->session, n_read(g)); // lookup->n_most says that it can
    g->ahead.n = g->ahead.n_right = 0;
}

// Whether the session holds the text's next token already.
static bool was_guessed(struct generation *g, int32_t id) {
    struct ahead *a = &g->ahead;
    if (a->n_right == a->n || a->ids[1 + a->n_right] != id) return false;
    a->n_right++;
    return true;
}

static const float *logits_now(const struct generation *g) {
    const struct ahead *a = &g->ahead;
    return a->n ? a->rows + (size_t)a->n_right * g->session->plan->program.n_vocab : g->session->last_logits;
}

// Picks the next token and decides whether it belongs to the text.
static enum atsi_status next_token(struct generation *g, int32_t *id, bool *ends, struct atsi_error *err) {
    const struct atsi_tokenizer *tokenizer = g->model->tokenizer;
    g->session->last_logits = logits_now(g);
    if (atsi_sampler_pick(g->sampler, g->session->last_logits, id, err) != ATSI_OK) {
        ATSI_TRY(
            atsi_session_check_logits(g->session, err)); // names the unit, which is worth another look at them only now
        return ATSI_FAILED;
    }
    atsi_sampler_accept(g->sampler, *id);
    *ends = !g->params->ignore_eos && tokenizer && atsi_tokenizer_ends_generation(tokenizer, (uint32_t)*id);
    return ATSI_OK;
}

static bool is_interrupted(const struct atsi_session *s) { return s->stop && *s->stop; }

// ---- reading on ---------------------------------------------------------------------------------------------------

// How many guesses the round that reads the newest token should have; they stand in g->ahead.ids. n_left: tokens that may come yet.
static uint32_t guess(struct generation *g, int64_t n_left) {
    struct atsi_lookup *l = g->params->lookup;
    uint32_t n = l->n_most, room = g->session->n_ctx - g->session->n_past;
    if (n_left >= 0 && n > n_left - 1) n = n_left > 0 ? (uint32_t)n_left - 1 : 0;
    if (n >= room) n = room - 1;
    n = atsi_lookup_guess(l, g->ahead.ids + 1, n);
    uint32_t n_checked = atsi_lookup_pace_choose(&l->pace, n);
    g->ahead.is_unchecked = n > 0 && n_checked == 0;
    return n_checked;
}

static enum atsi_status read_with_guesses(struct generation *g, int32_t id, int64_t n_left, struct atsi_error *err) {
    struct atsi_lookup *l = g->params->lookup;
    struct ahead *a = &g->ahead;
    double started_us = atsi_clock_us();
    atsi_lookup_append(l, &id, 1);
    uint32_t n = guess(g, n_left);
    a->ids[0] = id;
    if (n == 0) {
        ATSI_TRY(atsi_session_append(g->session, &id, 1, NULL, NULL, err));
    } else {
        ATSI_TRY(atsi_session_check(g->session, a->ids, 1 + n, &a->rows, err));
        a->n = n;
        l->n_rounds++;
        l->n_guessed += n;
    }
    atsi_lookup_pace_time(&l->pace, n, atsi_clock_us() - started_us);
    return ATSI_OK;
}

// How a guess turned out, checked or not.
static void judge(struct generation *g, int32_t id) {
    struct ahead *a = &g->ahead;
    bool is_checked = a->n > a->n_right;
    if (is_checked || a->is_unchecked) atsi_lookup_pace_judge(&g->params->lookup->pace, a->ids[1 + a->n_right] == id);
    a->is_unchecked = false;
}

// The text's next token is read, if the session does not hold it already.
static enum atsi_status read_token(struct generation *g, int32_t id, int64_t n_left, struct atsi_error *err) {
    struct atsi_lookup *l = g->params->lookup;
    judge(g, id);
    if (was_guessed(g, id)) {
        atsi_lookup_append(l, &id, 1);
        l->n_right++;
        return ATSI_OK;
    }
    drop_guesses(g);
    return l ? read_with_guesses(g, id, n_left, err) : atsi_session_append(g->session, &id, 1, NULL, NULL, err);
}

// The token that ends the text, for the next one.
static enum atsi_status read_end(struct generation *g, int32_t id, struct atsi_error *err) {
    bool is_there = was_guessed(g, id);
    drop_guesses(g);
    if (g->params->lookup && g->session->n_past + !is_there <= g->session->n_ctx)
        atsi_lookup_append(g->params->lookup, &id, 1);
    if (is_there || g->session->n_past == g->session->n_ctx) return ATSI_OK;
    return atsi_session_append(g->session, &id, 1, NULL, NULL, err);
}

static enum atsi_status decode(struct generation *g, struct atsi_generate_result *r, struct atsi_error *err) {
    const struct atsi_generate_params *params = g->params;
    double started_us = 0;
    for (;;) {
        int32_t id;
        bool ends;
        enum atsi_status status = ATSI_OK;
        if (params->n_predict >= 0 && r->n_generated >= params->n_predict) {
            r->finish = ATSI_FINISH_LENGTH;
            break;
        }
        if (is_interrupted(g->session)) {
            r->finish = ATSI_FINISH_INTERRUPT;
            break;
        }
        ATSI_TRY(next_token(g, &id, &ends, err));
        if (r->n_generated == 0) started_us = atsi_clock_us();
        if (ends) {
            r->finish = ATSI_FINISH_EOS;
            status = read_end(g, id, err);
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
        if (n_read(g) == g->session->n_ctx) break;
        int64_t n_left = params->n_predict < 0 ? -1 : params->n_predict - r->n_generated;
        status = n_left == 0 ? ATSI_OK : read_token(g, id, n_left, err);
        if (status == ATSI_INTERRUPTED) continue; // the loop's head ends it
        ATSI_TRY(status);
    }
    drop_guesses(g);
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
    if (params->lookup && n <= session->n_ctx - session->n_past) atsi_lookup_append(params->lookup, prompt, n);
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
    struct generation g = {.model = model, .session = session, .sampler = sampler, .params = params};
    return decode(&g, result, err);
}
