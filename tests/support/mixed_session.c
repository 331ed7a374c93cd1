#include "tests/support/mixed_session.h"

#include <string.h>

#include "kernels/sim/sim_device.h"
#include "tests/support/check.h"

static void open_session(struct mixed_session *s, bool in_turn, const struct atsi_exchange_params *exchange) {
    const struct atsi_plan *plan = &s->file.model.plan;
    struct atsi_executor_params executor = {.plan = plan,
                                            .host_tensors = s->weights.host,
                                            .device_tensors = s->weights.device,
                                            .mapped_tensors = s->weights.mapped,
                                            .host_experts = s->weights.experts.refs[ATSI_CPU],
                                            .device_experts = s->weights.experts.refs[ATSI_GPU],
                                            .n_threads = 2,
                                            .isa = "reference",
                                            .device = s->device,
                                            .routing = s->routing};
    struct atsi_dispatcher_params dispatching = {
        .plan = plan, .policy = ATSI_POLICY_FIFO, .has_device = s->device != NULL};
    struct atsi_session_params session = {
        .executor = &executor,
        .rescheduling = {.epsilon = 0.3, .tau = 1, .in_turn = in_turn, .experts = &s->weights.experts},
        .exchange = *exchange};
    session.exchange.weights = &s->weights;
    session.exchange.routing = s->routing;
    check_ok(atsi_dispatcher_create(&dispatching, &session.dispatcher, &s->err), s->err);
    check_ok(atsi_session_create(&session, &s->session, &s->err), s->err);
}

void mixed_session_open(struct mixed_session *s, struct atsi_device *device, bool in_turn,
                        const struct atsi_exchange_params *exchange) {
    memset(s, 0, sizeof *s);
    s->device = device;
    model_file_open_mixed(&s->file, false);
    const struct atsi_plan *plan = &s->file.model.plan;
    struct atsi_weights_params loading = {.model = &s->file.model, .device = device};
    check_ok(atsi_weights_load(&s->weights, &loading, &s->err), s->err);
    check_ok(atsi_routing_create(&plan->program, plan->limits.chunk, device, &s->routing, &s->err), s->err);
    open_session(s, in_turn, exchange);
    s->reserve = (struct atsi_reserve){.weights = &s->weights};
    if (device) atsi_session_follow(s->session, &s->reserve);
}

void mixed_session_close(struct mixed_session *s) {
    atsi_session_free(s->session);
    atsi_routing_free(s->routing);
    atsi_weights_free(&s->weights);
    if (s->device) {
        assert_int_equal(atsi_sim_n_alive(s->device), 0);
        s->device->ops->close(s->device);
    }
    model_file_close(&s->file);
}
