// op_call.h: an operation with its operands resolved to addresses of one device. The CPU kernels, the simulated device and
// the CUDA launchers all take this struct; the runtime builds the calls once per assignment and only refreshes
// `struct atsi_round` between rounds.
#ifndef ATSI_KERNELS_OP_CALL_H
#define ATSI_KERNELS_OP_CALL_H

#include "formats/program.h"

// What changes from round to round. One copy lives where the device can read it (CUDA kernels read it from device memory, so
// that a captured graph stays valid); the host copy sizes the launches.
struct atsi_round {
    int32_t n_tokens;  // rows of the tokens domain in this round, 1..chunk
    int32_t n_outputs; // rows of the outputs domain, 0..n_outputs_max
    int32_t first_pos; // position of the first token; positions are consecutive
    // What this round's marks count from (kernels/device.h); they wrap.
    int32_t mark;
    int32_t transfers; // marks of transfers
};

// Addresses of a round's data on one device.
struct atsi_round_ref {
    const struct atsi_round *round;
    const int32_t *token_ids;   // [n_tokens]
    const int32_t *output_rows; // [n_outputs]: which token row each output row copies
};

// Rows of a view: element j of row r is at data + r * stride + j (4-byte elements). data is NULL when absent.
struct atsi_rows_ref {
    void *data;
    uint32_t stride; // elements from row to row: the width of the whole buffer
    uint32_t width;
};

struct atsi_tensor_ref {
    const void *data;               // NULL when absent
    const struct atsi_tensor *info; // shape and layout (host memory)
};

// A state on one device.
//   KV:    k: [capacity][n_heads][k_dim], v: [capacity][n_heads][v_dim], every head a row of kv_type; position p stands in
//          slot p % capacity.
//   CONV:  float [v_dim taps][k_dim channels], oldest first.   DELTA: float [n_heads][k_dim][v_dim].
struct atsi_state_ref {
    void *k;                       // KV keys, or the whole CONV / DELTA state
    void *v;                       // KV values, else NULL
    const struct atsi_state *info; // host memory
    enum atsi_dtype kv_type;
    uint32_t capacity; // KV: slots
};

// Experts that are resident one by one on the device that runs the call (formats/plan.h, struct atsi_resident_experts).
struct atsi_experts_ref {
    // [n_experts] where each expert stands among the resident ones, -1: not among them. NULL: none is resident. ROUTER: the chosen
    // experts that are come first, in the order in which they were chosen, the others behind them.
    const int32_t *slots;
    // EXPERTS: the resident experts of tensor[0], packed like it; the others are read where tensor[0] is. NULL: none of this tensor.
    const void *data;
    // ROUTER: a second place for its ids, [rows][n_used] one behind the other, for whoever counts them: on a device mapped host
    // memory. NULL: none.
    int32_t *chosen;
    // A token's slots divided between device and host: of a token with r resident experts the device computes the first gpu_slots[r],
    // the host the others. Both NULL: not divided so.
    // [n_used + 1] in host memory, none below its index, n_used at most ATSI_DIVIDED_SLOTS_MAX. ROUTER on the device, which copies them when
    // it is launched; EXPERTS on the host, where `slots` is a table in host memory: those slots are left out, not computed and not written.
    const uint8_t *gpu_slots;
    // [rows][n_used] one behind the other, on the device: the ids of its slots, -1 for those of the host. The ROUTER writes it, and the
    // device's EXPERTS read it in place of in[1].
    int32_t *mine;
    // EXPERTS of one row on a device: where fetch_experts (kernels/device.h) has brought those of its slots that are not resident, slot s's at
    // s times the bytes of an expert, 256-byte aligned. NULL: they are read where tensor[0] is.
    void *fetched;
};

struct atsi_op_call {
    const struct atsi_op *op; // kind and parameters (host memory)
    struct atsi_rows_ref in[ATSI_OP_MAX_IN];
    struct atsi_rows_ref out[ATSI_OP_MAX_OUT];
    struct atsi_tensor_ref tensor[ATSI_OP_MAX_TENSORS];
    struct atsi_state_ref state;
    struct atsi_experts_ref resident;
    bool outputs_domain;         // rows: round->n_outputs instead of round->n_tokens (SELECT: of its output)
    struct atsi_round_ref round; // addresses on the device that runs the call
};

#endif
