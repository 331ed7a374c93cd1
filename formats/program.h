// program.h: a model as a program, the part of a plan that says what is computed.
//
// The planner lowers a model into typed operations over named buffers, tensors and states; the runtime and the kernels
// know these operations and no model family. Everything that a family decides (rope tables, scales, which rows of a
// matrix are queries) is settled before the program is written.
//
// Rows. A round runs n_tokens tokens at consecutive positions. A buffer holds one row a token, or one row an output (a
// token whose logits are wanted); ops on the two domains meet only in ATSI_OP_SELECT. All activations are float32 except
// expert ids (int32).
//
// Shapes follow GGUF: a weight has ne[0] = inputs (contiguous) and ne[1] = outputs; expert weights add ne[2] = experts.
#ifndef ATSI_FORMATS_PROGRAM_H
#define ATSI_FORMATS_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/backend.h"
#include "formats/base/error.h"
#include "formats/dtype.h"

enum {
    ATSI_NAME_CAP = 80,  // bytes of a name with its terminator
    ATSI_OP_MAX_IN = 5,  // views that an op reads
    ATSI_OP_MAX_OUT = 2, // views that an op writes
    ATSI_OP_MAX_TENSORS = 3,
    ATSI_MAX_OPS = 16384,
    ATSI_MAX_BUFFERS = 1024,
    ATSI_MAX_TENSORS = 16384,
    ATSI_MAX_STATES = 1024,
    ATSI_MAX_UNITS = 4096,
    ATSI_MAX_UNIT_OPS = 256,
    ATSI_MAX_WIDTH = 1 << 22,    // elements of a buffer row
    ATSI_DIVIDED_SLOTS_MAX = 64, // experts a token; where it uses more, they are not divided token by token
    ATSI_NONE = -1
};

// How a tensor's bytes are arranged (kernels/layout.h draws each).
enum atsi_layout {
    ATSI_LAYOUT_PLAIN = 0, // rows as in GGUF
    ATSI_LAYOUT_TILE16 = 1 // 16 rows interleaved at 4-byte granularity, block after block
};

struct atsi_tensor {
    char name[ATSI_NAME_CAP]; // the GGUF name, or a made-up one for tables such as "rope.inv_freq.0"
    enum atsi_dtype dtype;
    enum atsi_layout layout;
    uint64_t ne[4];      // unused dimensions are 1
    uint64_t size_bytes; // packed size; equals atsi_layout_bytes()
};

enum atsi_rows {
    ATSI_ROWS_TOKENS = 0,
    ATSI_ROWS_OUTPUTS = 1
};

struct atsi_buffer {
    char name[ATSI_NAME_CAP];
    uint32_t width; // elements of a row
    enum atsi_rows rows;
    bool is_int;           // int32 (expert ids), else float32
    uint64_t offset_bytes; // in the compute region at the planned chunk (atsi_program_place_buffers)
};

// `width` elements from `offset` of every row of a buffer.
struct atsi_view {
    int32_t buffer; // ATSI_NONE when the operand is absent
    uint32_t offset;
    uint32_t width;
};

enum atsi_state_kind {
    ATSI_STATE_KV = 0,
    ATSI_STATE_CONV = 1,
    ATSI_STATE_DELTA = 2
};

// What outlives a round. Sizes: atsi_state_bytes().
struct atsi_state {
    char name[ATSI_NAME_CAP];
    enum atsi_state_kind kind;
    uint32_t n_heads; // KV: key/value heads; DELTA: value heads; CONV: 1
    uint32_t k_dim;   // KV, DELTA: key elements a head; CONV: channels
    uint32_t v_dim;   // KV, DELTA: value elements a head; CONV: taps kept (kernel size - 1)
    uint32_t window;  // KV: positions that a token sees, itself included; 0 = all
};

// clang-format off
enum atsi_op_kind {
    ATSI_OP_EMBED,    // out = scale * row of tensor[0] [width, n_vocab] for each token id
    ATSI_OP_RMS_NORM, // out (+)= in / sqrt(mean(in^2) + eps) * tensor[0], in groups of `group` elements; tensor[0] has
                      //   `group` elements or is absent
    ATSI_OP_MATMUL,   // out (+)= tensor[0] [in.width, out.width] * in  + tensor[1] [out.width] (optional bias)
    ATSI_OP_ROPE,     // out = in rotated: n_heads heads of head_dim, the first n_rot of each, by position *
                      //   tensor[0] [n_rot/2] (inverse frequencies), cos and sin times `scale`
    ATSI_OP_ATTENTION, // in = q, k, v; stores k and v in `state`, out = softmax(scale * q k' [+ sink]) v, causal, windowed;
                       //   tensor[0] [n_heads]: optional sink logits
    ATSI_OP_GLU,       // in = gate, up; out = act(gate) * up
    ATSI_OP_GATE,      // in = x, g; out = x * sigmoid(g), each element of g for x.width / g.width elements of x
    ATSI_OP_ADD,       // out = in[0] + in[1]
    ATSI_OP_ROUTER, // in = logits [n_experts]; out = ids (int) [n_used], weights [n_used]; tensor[0] [n_experts]: optional
                    //   bias that counts for the selection only
    ATSI_OP_EXPERTS, // in = x, ids; out (n_used slots side by side) = tensor[0] [cols, rows, n_experts] * x (+ tensor[1]
                     //   [rows, n_experts]) for each slot's expert; x has cols elements (shared) or n_used * cols
    ATSI_OP_EXPERT_SUM, // in = slots [n_used * width], weights [n_used], ids (int) [n_used]; out (+)= sum of weight * slot in
                        //   ascending order of the ids, so that it does not depend on how a router orders its slots; without
                        //   ids (optional) in the order of the slots
    ATSI_OP_CONV, // causal depthwise convolution with tensor[0] [taps, channels], then SiLU; `state` keeps taps - 1
    ATSI_OP_DELTA_RULE, // gated delta rule: in = q, k, v, beta, alpha; tensor[0] [n_v_heads] = A (negative), tensor[1]
                        //   [n_v_heads] = dt bias; see struct atsi_delta_params
    ATSI_OP_SELECT,     // out (rows: outputs) = the rows of `in` whose logits are wanted
    ATSI_OP_KIND_LIMIT
};
// clang-format on

enum atsi_rope_pairing {
    ATSI_ROPE_HALF_SPLIT = 0,
    ATSI_ROPE_INTERLEAVED = 1
}; // i with i + n_rot/2; 2i with 2i + 1

enum atsi_glu_act {
    ATSI_GLU_SILU = 0,
    ATSI_GLU_GELU_TANH = 1,
    ATSI_GLU_CLAMPED = 2 // GPT-OSS: g = min(gate, limit), u = clamp(up, +-limit); (u + 1) * g * sigmoid(alpha * g)
};

enum atsi_router_score {
    ATSI_ROUTER_SOFTMAX = 0, // softmax over all experts, then the n_used largest
    ATSI_ROUTER_SIGMOID = 1,
    ATSI_ROUTER_SOFTMAX_SELECTED = 2 // the n_used largest logits, softmax over those
};

struct atsi_norm_params {
    uint32_t group;
    float eps;
};
struct atsi_rope_params {
    uint32_t n_heads, head_dim, n_rot;
    enum atsi_rope_pairing pairing;
    float scale;
};
struct atsi_attention_params {
    uint32_t n_heads, n_kv_heads;
    float scale;
}; // head dims: from the state
struct atsi_glu_params {
    enum atsi_glu_act act;
    float alpha, limit;
};
struct atsi_router_params {
    uint32_t n_experts, n_used;
    enum atsi_router_score score;
    bool normalise; // selected weights divided by their sum
    float scale;    // then multiplied
};
struct atsi_experts_params {
    uint32_t n_experts, n_used;
    bool in_per_slot;
};
// For value head h with key head kh (tiled: h % n_k_heads, else h / (n_v_heads / n_k_heads)), per token:
//   q, k <- l2-normalised (eps), q *= 1/sqrt(k_dim); g = exp(A_h * softplus(alpha_h + dt_h)); b = sigmoid(beta_h)
//   S *= g;  S += k (b (v - S' k))';  out_h = S' q          S: [k_dim, v_dim] per value head
struct atsi_delta_params {
    uint32_t n_k_heads, n_v_heads;
    bool tiled;
    float eps;
};

struct atsi_op {
    enum atsi_op_kind kind;
    bool add; // RMS_NORM, MATMUL, EXPERT_SUM: the result is added to what `out` holds
    struct atsi_view in[ATSI_OP_MAX_IN];
    struct atsi_view out[ATSI_OP_MAX_OUT];
    int32_t tensor[ATSI_OP_MAX_TENSORS]; // indices, ATSI_NONE where absent
    int32_t state;
    union {
        float embed_scale;
        struct atsi_norm_params norm;
        struct atsi_rope_params rope;
        struct atsi_attention_params attention;
        struct atsi_glu_params glu;
        struct atsi_router_params router;
        struct atsi_experts_params experts;
        struct atsi_delta_params delta;
    } u;
};

// What is placed: consecutive ops that run on one backend (docs/placement.md: one weight with what follows it, or one attention with
// its cache). Units cover the ops without gaps, in order.
enum atsi_unit_kind {
    ATSI_UNIT_MATRIX = 0,
    ATSI_UNIT_EXPERTS = 1,
    ATSI_UNIT_STATE = 2,
    ATSI_UNIT_EMBED = 3,
    ATSI_UNIT_HEAD = 4
};

struct atsi_unit {
    char name[ATSI_NAME_CAP]; // "blk.3.attn_q"
    enum atsi_unit_kind kind;
    int32_t layer; // -1 outside the layers
    uint32_t first_op, n_ops;
    uint64_t weight_bytes;     // packed bytes of all its tensors
    int32_t router_unit;       // EXPERTS (one operation on experts, no other product): holds its router, else ATSI_NONE
    enum atsi_backend backend; // the static placement
};

struct atsi_program {
    struct atsi_tensor *tensors;
    uint32_t n_tensors;
    struct atsi_buffer *buffers;
    uint32_t n_buffers;
    struct atsi_state *states;
    uint32_t n_states;
    struct atsi_op *ops;
    uint32_t n_ops;
    struct atsi_unit *units;
    uint32_t n_units;
    int32_t logits;   // buffer [n_vocab] in the outputs domain
    uint32_t n_vocab; // rows of the output matrix
};

// Builders (planner). Each appends and returns the new index, or ATSI_NONE when memory or a limit runs out.
int32_t atsi_program_add_tensor(struct atsi_program *p, const struct atsi_tensor *tensor);
int32_t atsi_program_add_buffer(struct atsi_program *p, const char *name, uint32_t width, enum atsi_rows rows,
                                bool is_int);
int32_t atsi_program_add_state(struct atsi_program *p, const struct atsi_state *state);
int32_t atsi_program_add_op(struct atsi_program *p, const struct atsi_op *op);
int32_t atsi_program_add_unit(struct atsi_program *p, const struct atsi_unit *unit);
void atsi_program_free(struct atsi_program *p); // NULL and a zeroed program are fine

// Checks everything that the runtime and the kernels rely on: indices, view bounds, row domains, shapes of tensors against
// views and parameters, unit coverage, n_used <= n_experts, powers and limits. A program that passes cannot make a kernel
// read or write outside its operands. ATSI_BAD_INPUT names the op and the operand.
enum atsi_status atsi_program_check(const struct atsi_program *p, struct atsi_error *err);

// The first operation of a kind in a unit, NULL when it has none.
const struct atsi_op *atsi_unit_find_op(const struct atsi_program *p, const struct atsi_unit *u,
                                        enum atsi_op_kind kind);
uint32_t atsi_unit_count_ops(const struct atsi_program *p, const struct atsi_unit *u, enum atsi_op_kind kind);

// The unit that operation i_op belongs to, of a program that has passed the check: units cover the operations in order.
uint32_t atsi_program_unit_of(const struct atsi_program *p, uint32_t i_op);

// Packed bytes of a tensor; 0 when type, layout and shape do not fit together or the size overflows. TILE16 pads the rows
// of every matrix (ne[0] x ne[1]) to a multiple of 16.
uint64_t atsi_layout_bytes(enum atsi_dtype dtype, enum atsi_layout layout, const uint64_t ne[4]);

// Where weights, states and activations begin on a device, and in what the host lays out like one.
enum {
    ATSI_ALIGNMENT = 256
};
static inline uint64_t atsi_aligned(uint64_t bytes) {
    return (bytes + ATSI_ALIGNMENT - 1) & ~(uint64_t)(ATSI_ALIGNMENT - 1);
}

// Norms, biases and tables: they stand on both sides wherever there is a device, so that no unit waits for one.
enum {
    ATSI_SMALL_TENSOR_BYTES = 256 << 10
};
static inline bool atsi_tensor_is_small(const struct atsi_tensor *t) {
    return t->size_bytes <= ATSI_SMALL_TENSOR_BYTES;
}

// Whether the rows (experts: the slots) of an operation may be divided between both sides: it multiplies by a big matrix.
static inline bool atsi_op_is_divisible(const struct atsi_program *p, const struct atsi_op *op) {
    bool multiplies = op->kind == ATSI_OP_MATMUL || op->kind == ATSI_OP_EXPERTS;
    return multiplies && !atsi_tensor_is_small(&p->tensors[op->tensor[0]]);
}

// Steps through the big tensors of a unit, *cursor from 0; one comes more than once where several of its operations read it. False at the end.
static inline bool atsi_unit_next_big_tensor(const struct atsi_program *p, const struct atsi_unit *u, uint32_t *cursor,
                                             uint32_t *tensor) {
    for (; *cursor < u->n_ops * ATSI_OP_MAX_TENSORS; (*cursor)++) {
        int32_t t = p->ops[u->first_op + *cursor / ATSI_OP_MAX_TENSORS].tensor[*cursor % ATSI_OP_MAX_TENSORS];
        if (t == ATSI_NONE || atsi_tensor_is_small(&p->tensors[t])) continue;
        *tensor = (uint32_t)t;
        (*cursor)++;
        return true;
    }
    return false;
}
// A unit with a state stays on the side where its state lives.
static inline bool atsi_unit_has_state(const struct atsi_program *p, const struct atsi_unit *u) {
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        if (p->ops[i].state != ATSI_NONE) return true;
    return false;
}

// Bytes of a state. KV: capacity positions x heads x (k_dim + v_dim) of kv_type; a windowed state keeps
// min(n_ctx, window + chunk) positions. CONV and DELTA are float32 whatever kv_type says.
uint64_t atsi_state_bytes(const struct atsi_state *s, uint32_t n_ctx, uint32_t chunk, enum atsi_dtype kv_type);
// Positions that a KV state keeps: n_ctx, or min(n_ctx, window + chunk) as a ring.
uint32_t atsi_state_capacity(const struct atsi_state *s, uint32_t n_ctx, uint32_t chunk);

// Gives every buffer its offset so that buffers that are live at the same time do not share bytes (a buffer is live from an op that
// writes all that is read of it to the last op that reads it before the next such write); rows: n_tokens_max and n_outputs_max.
// Offsets are aligned. *region_bytes: the total.
enum atsi_status atsi_program_place_buffers(struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max,
                                            uint64_t *region_bytes, struct atsi_error *err);
// ATSI_BAD_INPUT: a buffer whose offset (of a plan file) is not aligned or that ends behind region_bytes.
enum atsi_status atsi_program_check_buffers(const struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max,
                                            uint64_t region_bytes, struct atsi_error *err);

const char *atsi_op_name(enum atsi_op_kind kind); // "matmul"
const char *atsi_layout_name(enum atsi_layout layout);

#endif
