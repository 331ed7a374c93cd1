// plan_tables.h: the fields of every record of the manifest (private to plan_json.c; apart so that the tables can be read
// as the schema).
#ifndef ATSI_FORMATS_PLAN_TABLES_H
#define ATSI_FORMATS_PLAN_TABLES_H

#include "formats/plan.h"
#include "formats/plan_fields.h"

static const char *const layout_words[] = {"plain", "tile16"};
static const char *const rows_words[] = {"tokens", "outputs"};
static const char *const state_words[] = {"kv", "conv", "delta"};
static const char *const unit_words[] = {"matrix", "experts", "state", "embed", "head"};
static const char *const backend_words[] = {"cpu", "gpu"};
static const char *const pairing_words[] = {"half_split", "interleaved"};
static const char *const act_words[] = {"silu", "gelu_tanh", "clamped"};
static const char *const score_words[] = {"softmax", "sigmoid", "softmax_selected"};

static const struct atsi_field model_fields[] = {
    ATSI_FIELD_TEXT_OF(atsi_plan_model, name),     ATSI_FIELD_TEXT_OF(atsi_plan_model, arch),
    ATSI_FIELD(U64, atsi_plan_model, n_params),    ATSI_FIELD(U64, atsi_plan_model, gguf_bytes),
    ATSI_FIELD(HEX64, atsi_plan_model, gguf_hash), ATSI_FIELD(U32, atsi_plan_model, n_ctx_train),
};
static const struct atsi_field limits_fields[] = {
    ATSI_FIELD(U32, atsi_plan_limits, n_ctx),      ATSI_FIELD(U32, atsi_plan_limits, chunk),
    ATSI_FIELD(U32, atsi_plan_limits, n_outputs),  ATSI_FIELD(DTYPE, atsi_plan_limits, kv_type),
    ATSI_FIELD(U32, atsi_plan_limits, n_threads),  ATSI_FIELD(U64, atsi_plan_limits, vram_bytes),
    ATSI_FIELD(U64, atsi_plan_limits, temp_bytes), ATSI_FIELD(U64, atsi_plan_limits, compute_bytes),
};
static const struct atsi_field certificate_fields[] = {
    ATSI_FIELD_TEXT_OF(atsi_plan_certificate, milp_status),
    ATSI_FIELD(DOUBLE, atsi_plan_certificate, objective_us),
    ATSI_FIELD(DOUBLE, atsi_plan_certificate, milp_objective_us),
    ATSI_FIELD(DOUBLE, atsi_plan_certificate, bound_us),
    ATSI_FIELD(DOUBLE, atsi_plan_certificate, gap),
    ATSI_FIELD(DOUBLE, atsi_plan_certificate, dp_seconds),
    ATSI_FIELD(DOUBLE, atsi_plan_certificate, milp_seconds),
};
static const struct atsi_field contention_fields[] = {
    ATSI_FIELD(DOUBLE, atsi_contention, cpu_beside_link), ATSI_FIELD(DOUBLE, atsi_contention, link_in_place),
    ATSI_FIELD(DOUBLE, atsi_contention, link_beside_cpu), // the last one: may be absent
};
static const struct atsi_field plan_fields[] = {
    ATSI_FIELD(BOOL, atsi_plan, vocab_only),
    ATSI_FIELD_TEXT_OF(atsi_plan, device),
    ATSI_FIELD(DOUBLE, atsi_plan, predicted_decode_us),
    ATSI_FIELD(DOUBLE, atsi_plan, predicted_prefill_us),
    ATSI_FIELD_TEXT_OF(atsi_plan, chat_format),
};

// A tensor's shape is an array and stands beside these.
static const struct atsi_field tensor_fields[] = {
    ATSI_FIELD_TEXT_OF(atsi_tensor, name),
    ATSI_FIELD(DTYPE, atsi_tensor, dtype),
    ATSI_FIELD_WORD_OF(atsi_tensor, layout, layout_words),
    ATSI_FIELD(U64, atsi_tensor, size_bytes),
};
static const struct atsi_field buffer_fields[] = {
    ATSI_FIELD_TEXT_OF(atsi_buffer, name),
    ATSI_FIELD(U32, atsi_buffer, width),
    ATSI_FIELD_WORD_OF(atsi_buffer, rows, rows_words),
    ATSI_FIELD(BOOL, atsi_buffer, is_int),
    ATSI_FIELD(U64, atsi_buffer, offset_bytes),
};
static const struct atsi_field state_fields[] = {
    ATSI_FIELD_TEXT_OF(atsi_state, name), ATSI_FIELD_WORD_OF(atsi_state, kind, state_words),
    ATSI_FIELD(U32, atsi_state, n_heads), ATSI_FIELD(U32, atsi_state, k_dim),
    ATSI_FIELD(U32, atsi_state, v_dim),   ATSI_FIELD(U32, atsi_state, window),
};
static const struct atsi_field unit_fields[] = {
    ATSI_FIELD_TEXT_OF(atsi_unit, name),     ATSI_FIELD_WORD_OF(atsi_unit, kind, unit_words),
    ATSI_FIELD(I32, atsi_unit, layer),       ATSI_FIELD(U32, atsi_unit, first_op),
    ATSI_FIELD(U32, atsi_unit, n_ops),       ATSI_FIELD(U64, atsi_unit, weight_bytes),
    ATSI_FIELD(I32, atsi_unit, router_unit), ATSI_FIELD_WORD_OF(atsi_unit, backend, backend_words),
};
static const struct atsi_field times_fields[] = {
    ATSI_FIELD(FLOAT, atsi_unit_times, cpu_us),
    ATSI_FIELD(FLOAT, atsi_unit_times, gpu_us),
    ATSI_FIELD(FLOAT, atsi_unit_times, switch_us),
    ATSI_FIELD(FLOAT, atsi_unit_times, transfer_us),
};
static const struct atsi_field fixed_fields[] = {
    ATSI_FIELD(FLOAT, atsi_unit_times, cpu_fixed_us),
    ATSI_FIELD(FLOAT, atsi_unit_times, gpu_fixed_us),
};
static const struct atsi_field start_fields[] = {ATSI_FIELD(DOUBLE, atsi_plan, cpu_start_us)};

// Parameters by kind of op; the others have none.
#define OP_FIELD(type_, path_, name_) \
    { name_, ATSI_FIELD_##type_, offsetof(struct atsi_op, u.path_), 0, NULL }
#define OP_WORD(path_, name_, words_) \
    { name_, ATSI_FIELD_WORD, offsetof(struct atsi_op, u.path_), sizeof(words_) / sizeof *(words_), words_ }
static const struct atsi_field embed_params[] = {OP_FIELD(FLOAT, embed_scale, "scale")};
static const struct atsi_field norm_params[] = {OP_FIELD(U32, norm.group, "group"), OP_FIELD(FLOAT, norm.eps, "eps")};
static const struct atsi_field rope_params[] = {
    OP_FIELD(U32, rope.n_heads, "n_heads"), OP_FIELD(U32, rope.head_dim, "head_dim"),
    OP_FIELD(U32, rope.n_rot, "n_rot"),     OP_WORD(rope.pairing, "pairing", pairing_words),
    OP_FIELD(FLOAT, rope.scale, "scale"),
};
static const struct atsi_field attention_params[] = {
    OP_FIELD(U32, attention.n_heads, "n_heads"),
    OP_FIELD(U32, attention.n_kv_heads, "n_kv_heads"),
    OP_FIELD(FLOAT, attention.scale, "scale"),
};
static const struct atsi_field glu_params[] = {
    OP_WORD(glu.act, "act", act_words),
    OP_FIELD(FLOAT, glu.alpha, "alpha"),
    OP_FIELD(FLOAT, glu.limit, "limit"),
};
static const struct atsi_field router_params[] = {
    OP_FIELD(U32, router.n_experts, "n_experts"), OP_FIELD(U32, router.n_used, "n_used"),
    OP_WORD(router.score, "score", score_words),  OP_FIELD(BOOL, router.normalise, "normalise"),
    OP_FIELD(FLOAT, router.scale, "scale"),
};
static const struct atsi_field experts_params[] = {
    OP_FIELD(U32, experts.n_experts, "n_experts"),
    OP_FIELD(U32, experts.n_used, "n_used"),
    OP_FIELD(BOOL, experts.in_per_slot, "in_per_slot"),
};
static const struct atsi_field delta_params[] = {
    OP_FIELD(U32, delta.n_k_heads, "n_k_heads"),
    OP_FIELD(U32, delta.n_v_heads, "n_v_heads"),
    OP_FIELD(BOOL, delta.tiled, "tiled"),
    OP_FIELD(FLOAT, delta.eps, "eps"),
};

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
static const struct {
    const struct atsi_field *fields;
    size_t n_fields;
} op_params[ATSI_OP_KIND_LIMIT] = {
    [ATSI_OP_EMBED] = {embed_params, COUNT_OF(embed_params)},
    [ATSI_OP_RMS_NORM] = {norm_params, COUNT_OF(norm_params)},
    [ATSI_OP_ROPE] = {rope_params, COUNT_OF(rope_params)},
    [ATSI_OP_ATTENTION] = {attention_params, COUNT_OF(attention_params)},
    [ATSI_OP_GLU] = {glu_params, COUNT_OF(glu_params)},
    [ATSI_OP_ROUTER] = {router_params, COUNT_OF(router_params)},
    [ATSI_OP_EXPERTS] = {experts_params, COUNT_OF(experts_params)},
    [ATSI_OP_DELTA_RULE] = {delta_params, COUNT_OF(delta_params)},
};

#endif
