#include "tests/support/mixed_session.h"

#include <string.h>

#include "kernels/sim/sim_device.h"
#include "tests/support/check.h"

void mixed_session_open(struct mixed_session *s, struct atsi_device *device, bool in_turn,
                        const struct atsi_exchange_params *exchange) {
    memset(s, 0, sizeof *s);
    s->device = device;
    model_file_open_mixed(&s->file, false);
    s->options = (struct atsi_run_options){.n_threads = 2,
                                           .isa = "reference",
                                           .reschedule_threshold = 0.3f,
                                           .reschedule_interval = 1,
                                           .reschedule_in_turn = in_turn,
                                           .no_exchange = exchange->never,
                                           .no_large_exchange = exchange->never_large};
    const struct atsi_loaded_params params = {.options = &s->options,
                                              .model = &s->file.model,
                                              .device = device,
                                              .counts_experts = true,
                                              .exchange_part = exchange->part,
                                              .exchange_sigmas = exchange->sigmas};
    check_ok(atsi_loaded_weights(&s->loaded, &params, &s->err), s->err);
    check_ok(atsi_loaded_session(&s->loaded, &params, &s->err), s->err);
}

void mixed_session_close(struct mixed_session *s) {
    atsi_loaded_free(&s->loaded);
    if (s->device) {
        assert_int_equal(atsi_sim_n_alive(s->device), 0);
        s->device->ops->close(s->device);
    }
    model_file_close(&s->file);
}
