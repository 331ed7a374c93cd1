// side.h: what one backend holds for a round: activations, states, round data, and the calls built over their addresses
// (private to the executor).
#ifndef ATSI_RUNTIME_SIDE_H
#define ATSI_RUNTIME_SIDE_H

#include "formats/plan.h"
#include "kernels/op_call.h"

// Addresses of one side. On the CPU they are host addresses, on a device its own.
struct atsi_side {
    char *compute;                          // the compute region
    void **state_k, **state_v;              // [n_states]; NULL where the state lives on the other side
    const void *const *tensors;             // [n_tensors]
    const struct atsi_experts_ref *experts; // [n_units] what is resident one by one; NULL: nothing
    struct atsi_round_ref round;
};

// The state rows of a KV cache: bytes of all keys, after which the values follow (256-byte aligned).
uint64_t atsi_side_value_offset(const struct atsi_state *s, uint32_t capacity, enum atsi_dtype kv_type);
// Bytes of a state's block with that alignment.
uint64_t atsi_side_state_bytes(const struct atsi_state *s, uint32_t n_ctx, uint32_t chunk, enum atsi_dtype kv_type);

// Resolves op `i_op` of the plan's program to the addresses of `side`.
void atsi_side_build_call(const struct atsi_plan *plan, uint32_t n_ctx, const struct atsi_side *side, uint32_t i_op,
                          struct atsi_op_call *call);

#endif
