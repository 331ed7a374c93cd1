#include "tools/synth/header.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Keys are counted while they are written; a failed write shows when the stream is closed.
struct keys {
    FILE *out;
    const char *arch;
    uint64_t n;
};

static void put_u32(FILE *out, uint32_t value) { fwrite(&value, sizeof value, 1, out); }
static void put_u64(FILE *out, uint64_t value) { fwrite(&value, sizeof value, 1, out); }
static void put_text(FILE *out, const char *text, size_t size) {
    put_u64(out, size);
    fwrite(text, 1, size, out);
}
static void put_string(FILE *out, const char *text) { put_text(out, text, strlen(text)); }

static void open_key(struct keys *k, const char *key, enum atsi_gguf_type type) {
    put_string(k->out, key);
    put_u32(k->out, type);
    k->n++;
}

static void open_arch_key(struct keys *k, const char *suffix, enum atsi_gguf_type type) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", k->arch, suffix);
    open_key(k, key, type);
}

static void arch_u32(struct keys *k, const char *suffix, uint32_t value) {
    open_arch_key(k, suffix, ATSI_GGUF_U32);
    put_u32(k->out, value);
}

static void arch_f32(struct keys *k, const char *suffix, float value) {
    open_arch_key(k, suffix, ATSI_GGUF_F32);
    fwrite(&value, sizeof value, 1, k->out);
}

static void arch_bool(struct keys *k, const char *suffix, bool value) {
    open_arch_key(k, suffix, ATSI_GGUF_BOOL);
    fputc(value, k->out);
}

static void arch_string(struct keys *k, const char *suffix, const char *value) {
    open_arch_key(k, suffix, ATSI_GGUF_STRING);
    put_string(k->out, value);
}

static void key_u32(struct keys *k, const char *key, uint32_t value) {
    open_key(k, key, ATSI_GGUF_U32);
    put_u32(k->out, value);
}

static void key_string(struct keys *k, const char *key, const char *value) {
    open_key(k, key, ATSI_GGUF_STRING);
    put_string(k->out, value);
}

static void open_array(struct keys *k, const char *key, enum atsi_gguf_type type, uint64_t n) {
    open_key(k, key, ATSI_GGUF_ARRAY);
    put_u32(k->out, type);
    put_u64(k->out, n);
}

// ---- hyperparameters ----------------------------------------------------------------------------------------------

static void put_rope(struct keys *k, const struct synth_shape *s, const struct synth_family *f) {
    arch_f32(k, "rope.freq_base", s->rope_base);
    arch_u32(k, "rope.dimension_count", s->n_rot);
    if (f->rope_sections) {
        uint32_t pairs = s->n_rot / 2, third = (pairs + 2) / 3;
        char key[96];
        snprintf(key, sizeof key, "%s.rope.dimension_sections", k->arch);
        open_array(k, key, ATSI_GGUF_I32, 4);
        put_u32(k->out, third);
        put_u32(k->out, third);
        put_u32(k->out, pairs - 2 * third);
        put_u32(k->out, 0);
    }
    if (s->rope_factor > 0) {
        arch_string(k, "rope.scaling.type", s->rope_orig_ctx ? "yarn" : "linear");
        arch_f32(k, "rope.scaling.factor", s->rope_factor);
    }
    if (s->rope_orig_ctx) arch_u32(k, "rope.scaling.original_context_length", s->rope_orig_ctx);
    if (s->long_factors) {
        double stretch = (double)s->n_ctx / s->rope_orig_ctx;
        arch_f32(k, "rope.scaling.attn_factor", (float)sqrt(1 + log(stretch) / log(s->rope_orig_ctx)));
    } else if (s->rope_orig_ctx) {
        arch_f32(k, "rope.scaling.yarn_beta_fast", 32);
        arch_f32(k, "rope.scaling.yarn_beta_slow", 1);
    }
    if (s->rope_log_mul > 0) arch_f32(k, "rope.scaling.yarn_log_multiplier", s->rope_log_mul);
    if (s->temperature > 0) arch_f32(k, "attention.temperature_scale", s->temperature);
    if (f->scaled_embed) arch_f32(k, "rope.freq_base_swa", 10000);
}

static void put_experts(struct keys *k, const struct synth_shape *s, const struct synth_family *f) {
    enum {
        SIGMOID = 2
    };
    if (s->n_experts == 0) return;
    arch_u32(k, "expert_count", s->n_experts);
    arch_u32(k, "expert_used_count", s->n_used);
    arch_u32(k, "expert_feed_forward_length", s->n_ff_exp);
    if (s->n_ff_shared && !f->sigmoid) arch_u32(k, "expert_shared_feed_forward_length", s->n_ff_shared);
    if (!f->selection_bias) return;
    arch_u32(k, "expert_shared_count", s->n_ff_shared / s->n_ff_exp);
    arch_u32(k, "leading_dense_block_count", s->n_dense);
    if (!f->sigmoid) {
        arch_u32(k, "interleave_moe_layer_step", 1);
        return;
    }
    arch_u32(k, "expert_gating_func", SIGMOID);
    arch_f32(k, "expert_weights_scale", 1);
    arch_bool(k, "expert_weights_norm", true);
}

static void put_delta_rule(struct keys *k, const struct synth_shape *s) {
    if (s->n_v_heads == 0) return;
    arch_u32(k, "ssm.conv_kernel", 4);
    arch_u32(k, "ssm.state_size", s->state_dim);
    arch_u32(k, "ssm.group_count", s->n_k_heads);
    arch_u32(k, "ssm.time_step_rank", s->n_v_heads);
    arch_u32(k, "ssm.inner_size", s->n_v_heads * s->state_dim);
    arch_u32(k, "full_attention_interval", 4);
}

static void put_hyperparameters(struct keys *k, const struct synth_model *m) {
    const struct synth_shape *s = &m->shape;
    char name[96];
    snprintf(name, sizeof name, "Synthetic %s", s->name);
    key_string(k, "general.architecture", s->arch);
    key_string(k, "general.type", "model");
    key_string(k, "general.name", name);
    key_u32(k, "general.file_type", synth_recipe_file_type(&m->recipe));
    key_u32(k, "general.quantization_version", 2);
    key_u32(k, "general.alignment", SYNTH_ALIGNMENT);
    arch_u32(k, "block_count", s->n_layers);
    arch_u32(k, "context_length", s->n_ctx);
    arch_u32(k, "embedding_length", s->n_embd);
    if (s->n_ff) arch_u32(k, "feed_forward_length", s->n_ff);
    arch_u32(k, "vocab_size", s->n_vocab);
    arch_u32(k, "attention.head_count", s->n_heads);
    arch_u32(k, "attention.head_count_kv", s->n_kv_heads);
    arch_u32(k, "attention.key_length", s->head_dim);
    arch_u32(k, "attention.value_length", s->head_dim);
    arch_f32(k, "attention.layer_norm_rms_epsilon", s->rms_eps);
    if (s->window) arch_u32(k, "attention.sliding_window", s->window);
    put_rope(k, s, m->family);
    put_experts(k, s, m->family);
    put_delta_rule(k, s);
}

// ---- vocabulary ---------------------------------------------------------------------------------------------------

enum {
    NORMAL = 1,
    CONTROL = 3,
    UNUSED = 5,
    N_BYTES = 256,
    MERGED = N_BYTES, // "Ġt"
    END,
    N_MADE
};

// Byte-level BPE shows bytes that are no printable Latin-1 letter as the letters from U+0100 on, in order.
static uint32_t letter_of_byte(uint32_t byte, uint32_t *n_moved) {
    bool shown = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return shown ? byte : 0x100 + (*n_moved)++;
}

static void put_letter(FILE *out, uint32_t letter) {
    char text[2] = {(char)(0xc0 | letter >> 6), (char)(0x80 | (letter & 63))};
    if (letter < 0x80) text[0] = (char)letter;
    put_text(out, text, letter < 0x80 ? 1 : 2);
}

static void put_made_tokens(struct keys *k, uint32_t n_vocab) {
    uint32_t n_moved = 0;
    char padding[24];
    open_array(k, "tokenizer.ggml.tokens", ATSI_GGUF_STRING, n_vocab);
    for (uint32_t byte = 0; byte < N_BYTES; byte++) put_letter(k->out, letter_of_byte(byte, &n_moved));
    put_string(k->out, "\xc4\xa0t");
    put_string(k->out, "<|endoftext|>");
    for (uint32_t i = N_MADE; i < n_vocab; i++) {
        snprintf(padding, sizeof padding, "[PAD%u]", i);
        put_string(k->out, padding);
    }
    open_array(k, "tokenizer.ggml.token_type", ATSI_GGUF_I32, n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++) put_u32(k->out, i < END ? NORMAL : i == END ? CONTROL : UNUSED);
}

static void put_made_vocabulary(struct keys *k, const struct synth_model *m) {
    key_string(k, "tokenizer.ggml.model", "gpt2");
    key_string(k, "tokenizer.ggml.pre", m->family->pre);
    put_made_tokens(k, m->shape.n_vocab);
    open_array(k, "tokenizer.ggml.merges", ATSI_GGUF_STRING, 1);
    put_string(k->out, "\xc4\xa0 t");
    key_u32(k, "tokenizer.ggml.bos_token_id", END);
    key_u32(k, "tokenizer.ggml.eos_token_id", END);
    open_key(k, "tokenizer.ggml.add_bos_token", ATSI_GGUF_BOOL);
    fputc(false, k->out);
}

static void copy_vocabulary(struct keys *k, const struct atsi_gguf *vocabulary) {
    static const char prefix[] = "tokenizer.";
    for (uint64_t i = 0; i < atsi_gguf_n_kv(vocabulary); i++) {
        const struct atsi_gguf_kv *kv = atsi_gguf_kv_at(vocabulary, i);
        if (kv->key.size < sizeof prefix || memcmp(kv->key.data, prefix, sizeof prefix - 1) != 0) continue;
        put_text(k->out, kv->key.data, kv->key.size);
        put_u32(k->out, kv->type);
        fwrite(kv->data, 1, kv->size_bytes, k->out);
        k->n++;
    }
}

// ---- the whole ----------------------------------------------------------------------------------------------------

static void put_directory(FILE *out, const struct synth_model *m) {
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const struct synth_tensor *t = &m->tensors[i];
        put_string(out, t->name);
        put_u32(out, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++) put_u64(out, t->ne[d]);
        put_u32(out, t->dtype);
        put_u64(out, t->offset);
    }
}

static void put_all(FILE *out, const struct synth_model *m, const struct keys *keys, const char *key_bytes,
                    size_t key_size) {
    fwrite("GGUF", 1, 4, out);
    put_u32(out, 3);
    put_u64(out, m->n_tensors);
    put_u64(out, keys->n);
    fwrite(key_bytes, 1, key_size, out);
    put_directory(out, m);
    while (ftell(out) % SYNTH_ALIGNMENT != 0) fputc(0, out);
}

// Closes a stream in memory; false when something did not fit.
static bool closed_well(FILE *stream) {
    bool good = !ferror(stream);
    return fclose(stream) == 0 && good;
}

enum atsi_status synth_header_make(const struct synth_model *model, const struct atsi_gguf *vocabulary, char **bytes,
                                   size_t *size_bytes, struct atsi_error *err) {
    char *key_bytes = NULL;
    size_t key_size = 0;
    *bytes = NULL;
    struct keys keys = {.out = open_memstream(&key_bytes, &key_size), .arch = model->shape.arch};
    if (!keys.out) return atsi_fail(err, ATSI_FAILED, "out of memory while making the header");
    put_hyperparameters(&keys, model);
    if (vocabulary)
        copy_vocabulary(&keys, vocabulary);
    else
        put_made_vocabulary(&keys, model);
    bool good = closed_well(keys.out);
    FILE *out = good ? open_memstream(bytes, size_bytes) : NULL;
    if (out) {
        put_all(out, model, &keys, key_bytes, key_size);
        good = closed_well(out);
    }
    free(key_bytes);
    if (out && good) return ATSI_OK;
    return atsi_fail(err, ATSI_FAILED, "out of memory while making the header");
}
