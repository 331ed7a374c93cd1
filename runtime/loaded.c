#include "runtime/loaded.h"

#include <string.h>

enum atsi_status atsi_loaded_weights(struct atsi_loaded *l, const struct atsi_loaded_params *p,
                                     struct atsi_error *err) {
    const struct atsi_plan *plan = &p->model->plan;
    const struct atsi_run_options *o = p->options;
    struct atsi_weights_params params = {.model = p->model,
                                         .device = p->device,
                                         .beside_bytes =
                                             p->device ? atsi_vram_beside_weights(plan, p->device, o->n_ctx) : 0,
                                         .beside_host_bytes = atsi_pinned_beside_weights(plan, o->n_ctx),
                                         .reserve_bytes = o->vram_reserve_bytes,
                                         .strict = o->strict,
                                         .progress = p->progress,
                                         .context = p->progress_context};
    *l = (struct atsi_loaded){0};
    return atsi_weights_load(&l->weights, &params, err);
}

bool atsi_has_experts(const struct atsi_plan *plan) {
    for (uint32_t i = 0; i < plan->program.n_ops; i++)
        if (plan->program.ops[i].kind == ATSI_OP_ROUTER) return true;
    return false;
}

static enum atsi_schedule_policy policy_of(const struct atsi_run_options *o) {
    if (o->policy && !strcmp(o->policy, "none")) return ATSI_POLICY_NONE;
    return o->policy && !strcmp(o->policy, "paper") ? ATSI_POLICY_PAPER : ATSI_POLICY_FIFO;
}

static enum atsi_status create_session(struct atsi_loaded *l, const struct atsi_loaded_params *p,
                                       struct atsi_error *err) {
    const struct atsi_plan *plan = &p->model->plan;
    const struct atsi_run_options *o = p->options;
    struct atsi_executor_params executor = {.plan = plan,
                                            .host_tensors = l->weights.host,
                                            .device_tensors = l->weights.device,
                                            .mapped_tensors = l->weights.mapped,
                                            .host_experts = l->weights.experts.refs[ATSI_CPU],
                                            .device_experts = l->weights.experts.refs[ATSI_GPU],
                                            .ring = l->weights.ring,
                                            .n_ctx = o->n_ctx,
                                            .n_threads = o->n_threads,
                                            .isa = o->isa,
                                            .device = p->device,
                                            .no_overlap = o->no_async,
                                            .no_repeats = o->no_repeats,
                                            .trace = p->trace,
                                            .routing = l->routing};
    struct atsi_dispatcher_params dispatching = {.plan = plan,
                                                 .policy = policy_of(o),
                                                 .has_device = p->device != NULL,
                                                 .no_split_rows = o->no_split_rows || o->no_async,
                                                 .staged_slowdown = atsi_pinned_ring_slowdown(l->weights.ring, plan)};
    struct atsi_session_params session = {.executor = &executor,
                                          .rescheduling = {.epsilon = o->reschedule_threshold,
                                                           .tau = o->reschedule_interval,
                                                           .never = o->no_reschedule,
                                                           .in_turn = o->reschedule_in_turn,
                                                           .log = p->decisions,
                                                           .experts = &l->weights.experts},
                                          .exchange = {.weights = &l->weights,
                                                       .routing = l->routing,
                                                       .part = p->exchange_part,
                                                       .sigmas = p->exchange_sigmas,
                                                       .never = o->no_exchange,
                                                       .never_large = o->no_large_exchange},
                                          .chunk = o->chunk,
                                          .stop = p->stop};
    ATSI_TRY(atsi_dispatcher_create(&dispatching, &session.dispatcher, err));
    return atsi_session_create(&session, &l->session, err);
}

static void follow_reserve(struct atsi_loaded *l, const struct atsi_loaded_params *p) {
    if (!p->device) return;
    l->reserve = (struct atsi_reserve){.weights = &l->weights,
                                       .bytes = p->options->vram_reserve_bytes,
                                       .pending_bytes = atsi_vram_of_states(&p->model->plan, p->options->n_ctx),
                                       .tell = p->tell_move,
                                       .context = p->tell_context,
                                       .trace = p->trace};
    atsi_session_follow(l->session, &l->reserve);
}

enum atsi_status atsi_loaded_session(struct atsi_loaded *l, const struct atsi_loaded_params *p,
                                     struct atsi_error *err) {
    const struct atsi_plan *plan = &p->model->plan;
    if (l->weights.experts.n_routers > 0 || (p->counts_experts && atsi_has_experts(plan)))
        ATSI_TRY(atsi_routing_create(&plan->program, plan->limits.chunk, p->device, &l->routing, err));
    ATSI_TRY(create_session(l, p, err));
    follow_reserve(l, p);
    return ATSI_OK;
}

void atsi_loaded_free(struct atsi_loaded *l) {
    atsi_session_free(l->session);
    atsi_routing_free(l->routing);
    atsi_weights_free(&l->weights);
    *l = (struct atsi_loaded){0};
}
