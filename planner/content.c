#include "planner/content.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/escape.h"
#include "formats/base/utf8.h"
#include "formats/version.h"
#include "planner/chat_format.h"
#include "planner/chunk.h"

static enum atsi_status copy_escaped(const struct atsi_gguf *gguf, const char *key, char *out, size_t out_size,
                                     struct atsi_error *err) {
    struct atsi_str text;
    ATSI_TRY(atsi_gguf_str_or_none(gguf, key, &text, err));
    if (text.data) atsi_escape(out, out_size, text.data, text.size);
    return ATSI_OK;
}

static enum atsi_status set_model(const struct atsi_gguf *gguf, struct atsi_plan_model *m, struct atsi_error *err) {
    ATSI_TRY(copy_escaped(gguf, "general.name", m->name, sizeof m->name, err));
    ATSI_TRY(copy_escaped(gguf, "general.architecture", m->arch, sizeof m->arch, err));
    m->gguf_bytes = atsi_gguf_size_bytes(gguf);
    return atsi_gguf_identity_hash(gguf, &m->gguf_hash, err);
}

static bool is_utf8_text(struct atsi_str text) {
    for (uint64_t i = 0; i < text.size;) {
        size_t n = atsi_utf8_length(text.data + i, text.size - i);
        if (n == 0 || text.data[i] == 0) return false;
        i += n;
    }
    return text.data != NULL;
}

// The format's name, and the template itself unless it holds a NUL or is malformed (then it is of no use to anyone).
static enum atsi_status set_chat(const struct atsi_gguf *gguf, struct atsi_plan *plan, struct atsi_error *err) {
    struct atsi_str text;
    ATSI_TRY(atsi_gguf_str_or_none(gguf, "tokenizer.chat_template", &text, err));
    snprintf(plan->chat_format, sizeof plan->chat_format, "%s", atsi_chat_format_detect(text));
    if (!is_utf8_text(text)) return ATSI_OK;
    plan->chat_template = strndup(text.data, text.size);
    return plan->chat_template ? ATSI_OK : atsi_out_of_memory(err);
}

static enum atsi_status set_notes(struct atsi_plan *plan, const char *command, struct atsi_error *err) {
    char when[32] = "", line[1024];
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    atsi_escape(line, sizeof line, command, strlen(command));
    if (asprintf(&plan->notes, "atsi-plan %s\nmade %s\ncommand %s", ATSI_VERSION, when, line) >= 0) return ATSI_OK;
    plan->notes = NULL;
    return atsi_out_of_memory(err);
}

static enum atsi_status set_limits(struct atsi_plan *plan, const struct atsi_lowered *lowered,
                                   const struct atsi_content_options *o, struct atsi_error *err) {
    struct atsi_plan_limits *l = &plan->limits;
    if (lowered->n_ctx > lowered->n_ctx_train)
        return atsi_fail(err, ATSI_BAD_INPUT, "--ctx %u: the model was made for at most %u", lowered->n_ctx,
                         lowered->n_ctx_train);
    l->n_ctx = lowered->n_ctx;
    l->kv_type = o->kv_type;
    l->n_threads = o->n_threads;
    ATSI_TRY(atsi_chunk_set(plan, o->chunk ? o->chunk : ATSI_DEFAULT_CHUNK, err));
    for (uint32_t i = 0; i < plan->program.n_states; i++) {
        const struct atsi_state *s = &plan->program.states[i];
        if (!atsi_state_bytes(s, l->n_ctx, l->chunk, l->kv_type))
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "--kv-type %s: heads of %u and %u elements are no multiple of its block, or the cache of "
                             "%u positions is too large",
                             atsi_dtype_name(l->kv_type), s->k_dim, s->v_dim, l->n_ctx);
    }
    return ATSI_OK;
}

static enum atsi_status fill(const struct atsi_gguf *gguf, const char *command, struct atsi_plan *plan,
                             struct atsi_error *err) {
    memset(plan, 0, sizeof *plan);
    snprintf(plan->certificate.milp_status, sizeof plan->certificate.milp_status, "skipped");
    ATSI_TRY(set_model(gguf, &plan->model, err));
    ATSI_TRY(set_chat(gguf, plan, err));
    return set_notes(plan, command, err);
}

enum atsi_status atsi_content_make(const struct atsi_gguf *gguf, struct atsi_lowered *lowered,
                                   const struct atsi_content_options *options, struct atsi_plan *plan,
                                   struct atsi_error *err) {
    ATSI_TRY(fill(gguf, options->command, plan, err));
    plan->program = lowered->program;
    memset(&lowered->program, 0, sizeof lowered->program);
    plan->model.n_params = lowered->n_params;
    plan->model.n_ctx_train = lowered->n_ctx_train;
    return set_limits(plan, lowered, options, err);
}

enum atsi_status atsi_content_make_vocab(const struct atsi_gguf *gguf, const char *command, struct atsi_plan *plan,
                                         struct atsi_error *err) {
    ATSI_TRY(fill(gguf, command, plan, err));
    plan->vocab_only = true;
    return ATSI_OK;
}
