#include "planner/budget.h"

#include "kernels/device.h"

static const uint64_t mib = 1 << 20;

// Quantised copies of the widest activations and split attention: two bytes for each element of the widest buffer, and
// a fixed part for what does not grow with the chunk.
static uint64_t estimate_scratch(const struct atsi_plan *plan) {
    uint64_t widest = 0;
    for (uint32_t i = 0; i < plan->program.n_buffers; i++)
        if (plan->program.buffers[i].rows == ATSI_ROWS_TOKENS && plan->program.buffers[i].width > widest)
            widest = plan->program.buffers[i].width;
    return 16 * mib + 2 * widest * plan->limits.chunk;
}

static uint64_t compute_bytes(const struct atsi_plan *plan, const struct atsi_device *device) {
    const struct atsi_plan_limits *l = &plan->limits;
    return l->compute_bytes + (device ? device->ops->scratch_bytes(&plan->program, l->chunk, l->n_outputs, l->n_ctx)
                                      : estimate_scratch(plan));
}

static uint64_t unit_state_bytes(const struct atsi_plan *plan, const struct atsi_unit *u) {
    uint64_t bytes = 0;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++) {
        int32_t s = plan->program.ops[i].state;
        if (s == ATSI_NONE) continue;
        bytes += 2 * ATSI_ALIGNMENT + atsi_state_bytes(&plan->program.states[s], plan->limits.n_ctx, plan->limits.chunk,
                                                       plan->limits.kv_type);
    }
    return bytes;
}

// The unit's own matrices. Small tensors do not count here: the runtime keeps them all on the GPU, so that promoted units
// need not move them.
static uint64_t unit_weight_bytes(const struct atsi_plan *plan, const struct atsi_unit *u) {
    uint64_t bytes = 0;
    uint32_t cursor = 0, tensor;
    while (atsi_unit_next_big_tensor(&plan->program, u, &cursor, &tensor))
        bytes += atsi_aligned(plan->program.tensors[tensor].size_bytes);
    return bytes;
}

uint64_t atsi_budget_unit(const struct atsi_plan *plan, const struct atsi_unit *u) {
    return unit_weight_bytes(plan, u) + unit_state_bytes(plan, u);
}

static bool unit_reads(const struct atsi_plan *plan, const struct atsi_unit *u, int32_t tensor) {
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++)
            if (plan->program.ops[i].tensor[k] == tensor) return true;
    return false;
}

uint64_t atsi_budget_shared(const struct atsi_plan *plan) {
    const struct atsi_unit *first = &plan->program.units[0], *last = &plan->program.units[plan->program.n_units - 1];
    uint64_t bytes = 0;
    if (first == last) return 0;
    for (uint32_t t = 0; t < plan->program.n_tensors; t++)
        if (!atsi_tensor_is_small(&plan->program.tensors[t]) && unit_reads(plan, first, (int32_t)t) &&
            unit_reads(plan, last, (int32_t)t))
            bytes += atsi_aligned(plan->program.tensors[t].size_bytes);
    return bytes;
}

static uint64_t small_bytes(const struct atsi_plan *plan) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->program.n_tensors; i++)
        if (atsi_tensor_is_small(&plan->program.tensors[i])) bytes += atsi_aligned(plan->program.tensors[i].size_bytes);
    return bytes;
}

// Blocks of resident experts, each operation's on their own, and a table for each router.
static uint64_t expert_bytes(const struct atsi_plan *plan) {
    const struct atsi_program *p = &plan->program;
    uint64_t bytes = 0;
    int32_t last_router = ATSI_NONE;
    for (uint32_t i = 0; i < p->n_units; i++) {
        const struct atsi_resident_experts *r = atsi_plan_resident_experts(plan, i);
        if (!r) continue;
        const struct atsi_op *op = atsi_unit_experts_op(p, &p->units[i]);
        uint32_t n_experts = op->u.experts.n_experts;
        bytes += atsi_aligned(r->n * (p->tensors[op->tensor[0]].size_bytes / n_experts));
        if (p->units[i].router_unit != last_router) bytes += atsi_router_table_bytes(n_experts, op->u.experts.n_used);
        last_router = p->units[i].router_unit;
    }
    return bytes;
}

static uint64_t driver_bytes(const struct atsi_device_profile *profile) {
    return profile->context_bytes + ATSI_GRAPHS_BYTES; // the profile's figure is from before any round was captured
}

uint64_t atsi_budget_base(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                          const struct atsi_device *device) {
    return driver_bytes(profile) + compute_bytes(plan, device) + small_bytes(plan);
}

uint64_t atsi_budget_least(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                           const struct atsi_device *device) {
    return (atsi_budget_base(plan, profile, device) + mib - 1) / mib * mib;
}

struct atsi_budget atsi_budget_of(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                  const struct atsi_device *device) {
    const struct atsi_program *p = &plan->program;
    struct atsi_budget b = {.vram = plan->limits.vram_bytes,
                            .driver = driver_bytes(profile),
                            .compute = compute_bytes(plan, device),
                            .temp = plan->limits.temp_bytes,
                            .experts = expert_bytes(plan),
                            .resident = small_bytes(plan)};
    for (uint32_t i = 0; i < p->n_units; i++) {
        if (p->units[i].backend != ATSI_GPU) continue;
        b.states += unit_state_bytes(plan, &p->units[i]);
        b.resident += unit_weight_bytes(plan, &p->units[i]);
    }
    if (p->units[0].backend == ATSI_GPU && p->units[p->n_units - 1].backend == ATSI_GPU)
        b.resident -= atsi_budget_shared(plan);
    b.spare = b.vram - b.driver - b.compute - b.temp - b.states - b.resident - b.experts;
    return b;
}
