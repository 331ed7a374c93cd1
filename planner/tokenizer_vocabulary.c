#include <stdlib.h>
#include <string.h>

#include "formats/tokenizer_tables.h"
#include "planner/tokenizer.h"

#define KEY(name) "tokenizer.ggml." name

static enum atsi_status read_switch(const struct atsi_gguf *gguf, const char *key, enum atsi_vocabulary_switch *out,
                                    struct atsi_error *err) {
    bool on;
    ATSI_TRY(atsi_gguf_bool_or(gguf, key, false, &on, err));
    *out = !atsi_gguf_find(gguf, key) ? ATSI_SWITCH_ABSENT : on ? ATSI_SWITCH_ON : ATSI_SWITCH_OFF;
    return ATSI_OK;
}

// Some converters write -1 (or 2^32 - 1) for "none"; an id outside the vocabulary means the same to every reader.
static enum atsi_status read_id(const struct atsi_gguf *gguf, const char *key, uint64_t n_tokens, uint32_t *out,
                                struct atsi_error *err) {
    *out = ATSI_TOKEN_NONE;
    const struct atsi_gguf_kv *kv = atsi_gguf_find(gguf, key);
    if (!kv) return ATSI_OK;
    bool minus_one = (kv->type == ATSI_GGUF_I32 || kv->type == ATSI_GGUF_I64) && kv->data[kv->size_bytes - 1] >= 0x80;
    if (minus_one) return ATSI_OK;
    uint64_t id;
    ATSI_TRY(atsi_gguf_u64(gguf, key, &id, err));
    if (id < n_tokens) *out = (uint32_t)id;
    return ATSI_OK;
}

static enum atsi_status read_ids(const struct atsi_gguf *gguf, struct atsi_vocabulary *v, struct atsi_error *err) {
    const struct {
        const char *key;
        uint32_t *id;
    } ids[] = {
        {KEY("bos_token_id"), &v->bos_id},         {KEY("eos_token_id"), &v->eos_id},
        {KEY("eot_token_id"), &v->eot_id},         {KEY("eom_token_id"), &v->eom_id},
        {KEY("unknown_token_id"), &v->unknown_id}, {KEY("padding_token_id"), &v->padding_id},
    };
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        ATSI_TRY(read_id(gguf, ids[i].key, v->n_tokens, ids[i].id, err));
    return ATSI_OK;
}

static enum atsi_status read_arrays(const struct atsi_gguf *gguf, struct atsi_vocabulary *v, struct atsi_error *err) {
    ATSI_TRY(atsi_gguf_strings(gguf, KEY("tokens"), ATSI_GGUF_ANY_LENGTH, &v->tokens, &v->n_tokens, err));
    if (v->n_tokens == 0) return atsi_fail(err, ATSI_BAD_INPUT, KEY("tokens") " is empty");
    uint64_t n;
    if (atsi_gguf_find(gguf, KEY("token_type")))
        ATSI_TRY(atsi_gguf_ints(gguf, KEY("token_type"), v->n_tokens, &v->types, &n, err));
    if (atsi_gguf_find(gguf, KEY("scores")))
        ATSI_TRY(atsi_gguf_floats(gguf, KEY("scores"), v->n_tokens, &v->scores, &n, err));
    if (atsi_gguf_find(gguf, KEY("merges")))
        ATSI_TRY(atsi_gguf_strings(gguf, KEY("merges"), ATSI_GGUF_ANY_LENGTH, &v->merges, &v->n_merges, err));
    return ATSI_OK;
}

enum atsi_status atsi_vocabulary_read(const struct atsi_gguf *gguf, struct atsi_vocabulary *vocabulary,
                                      struct atsi_error *err) {
    memset(vocabulary, 0, sizeof *vocabulary);
    ATSI_TRY(atsi_gguf_str_or_none(gguf, "general.architecture", &vocabulary->architecture, err));
    ATSI_TRY(atsi_gguf_str_or_none(gguf, KEY("model"), &vocabulary->model, err));
    if (atsi_str_is(vocabulary->model, "no_vocab"))
        vocabulary->model.data = NULL; // said instead of leaving the key out
    if (!vocabulary->model.data) return ATSI_OK;
    ATSI_TRY(atsi_gguf_str_or_none(gguf, KEY("pre"), &vocabulary->pre, err));
    ATSI_TRY(read_arrays(gguf, vocabulary, err));
    ATSI_TRY(read_ids(gguf, vocabulary, err));
    ATSI_TRY(read_switch(gguf, KEY("add_bos_token"), &vocabulary->add_bos, err));
    ATSI_TRY(read_switch(gguf, KEY("add_eos_token"), &vocabulary->add_eos, err));
    ATSI_TRY(read_switch(gguf, KEY("add_space_prefix"), &vocabulary->add_space_prefix, err));
    return read_switch(gguf, KEY("remove_extra_whitespaces"), &vocabulary->remove_extra_whitespaces, err);
}

void atsi_vocabulary_free(struct atsi_vocabulary *vocabulary) {
    free(vocabulary->tokens);
    free(vocabulary->merges);
    free(vocabulary->types);
    free(vocabulary->scores);
    memset(vocabulary, 0, sizeof *vocabulary);
}
