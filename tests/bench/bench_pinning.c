// What a driver that pins little memory costs: one plan, a prompt and some tokens, with everything pinned, with no more than the pinned ring, and
// with nothing, in turn. The refusals are this program's own.
//   bench_pinning PLAN.atsp [DEVICE [TOKENS]]      DEVICE as --device (default cuda), a prompt of TOKENS (2048, at most the context)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "runtime/loaded.h"
#include "runtime/open_device.h"

enum {
    N_DECODE = 32,
    N_TURNS = 2,
    MAX_BLOCKS = 4096
};

enum mode {
    PINNED,
    RING,
    NOTHING,
    N_MODES
};
static const char *const names[] = {"pinned", "ring", "nothing"};

// ---- a driver that refuses ----------------------------------------------------------------------------------------

static struct {
    const struct atsi_device_ops *real;
    uint64_t limit, used;
    struct {
        void *host;
        uint64_t bytes;
    } blocks[MAX_BLOCKS];
} driver;

static enum atsi_status refuse_register(struct atsi_device *d, const void *host, uint64_t bytes, const void **dev,
                                        struct atsi_error *err) {
    (void)d, (void)host, (void)bytes, (void)dev;
    return atsi_fail(err, ATSI_FAILED, "registering is refused");
}

static enum atsi_status alloc_within_limit(struct atsi_device *d, uint64_t bytes, void **host, void **dev,
                                           struct atsi_error *err) {
    int i = 0;
    while (i < MAX_BLOCKS && driver.blocks[i].host) i++;
    if (i == MAX_BLOCKS || bytes > driver.limit - driver.used)
        return atsi_fail(err, ATSI_FAILED, "more pinned memory than the limit");
    ATSI_TRY(driver.real->host_alloc(d, bytes, host, dev, err));
    driver.used += bytes;
    driver.blocks[i].host = *host;
    driver.blocks[i].bytes = bytes;
    return ATSI_OK;
}

static void free_counted(struct atsi_device *d, void *host) {
    for (int i = 0; host && i < MAX_BLOCKS; i++) {
        if (driver.blocks[i].host != host) continue;
        driver.used -= driver.blocks[i].bytes;
        driver.blocks[i].host = NULL;
    }
    driver.real->host_free(d, host);
}

// ---- one run ------------------------------------------------------------------------------------------------------

struct run {
    struct atsi_model model;
    struct atsi_device *device;
    struct atsi_loaded loaded;
    int32_t *ids; // [n_prompt]
    uint32_t n_prompt;
};

static enum atsi_status load(struct run *r, const struct atsi_run_options *options, struct atsi_error *err) {
    const struct atsi_loaded_params params = {.options = options, .model = &r->model, .device = r->device};
    char text[2 * ATSI_TEXT_CAP];
    ATSI_TRY(atsi_loaded_weights(&r->loaded, &params, err));
    atsi_weights_describe_pinning(&r->loaded.weights, text, sizeof text);
    if (text[0]) printf("  %s\n", text);
    return atsi_loaded_session(&r->loaded, &params, err);
}

static enum atsi_status time_text(struct run *r, enum mode mode, struct atsi_error *err) {
    double began_us = atsi_clock_us();
    ATSI_TRY(atsi_session_append(r->loaded.session, r->ids, r->n_prompt, NULL, NULL, err));
    double read_us = atsi_clock_us() - began_us;
    uint32_t n_promoted = r->loaded.session->rescheduler.stats.decision.n_promoted;
    began_us = atsi_clock_us();
    for (int i = 0; i < N_DECODE; i++) ATSI_TRY(atsi_session_append(r->loaded.session, r->ids + i, 1, NULL, NULL, err));
    double token_us = (atsi_clock_us() - began_us) / N_DECODE;
    printf("%-8s prefill %8.1f tok/s, %u units promoted; decode %6.2f tok/s\n", names[mode],
           r->n_prompt / read_us * 1e6, n_promoted, 1e6 / token_us);
    atsi_session_truncate(r->loaded.session, 0);
    return ATSI_OK;
}

static enum atsi_status run_turns(struct run *r, enum mode mode, const struct atsi_run_options *options,
                                  struct atsi_error *err) {
    ATSI_TRY(load(r, options, err));
    for (int i = 0; i < N_TURNS; i++) ATSI_TRY(time_text(r, mode, err));
    return ATSI_OK;
}

static enum atsi_status run_mode(struct run *r, enum mode mode, const char *device, struct atsi_error *err) {
    struct atsi_run_options options = {.device = device};
    struct atsi_device_ops refusing;
    struct atsi_error fallback;
    ATSI_TRY(atsi_open_device(&options, &r->model.plan, &r->device, &fallback, err));
    if (!r->device) return atsi_fail(err, ATSI_FAILED, "the plan uses no card");
    driver.real = r->device->ops;
    driver.limit = atsi_pinned_beside_weights(&r->model.plan, 0) + (mode == RING ? (uint64_t)65 << 20 : 512 << 10);
    refusing = *driver.real;
    refusing.host_register = refuse_register;
    refusing.host_alloc = alloc_within_limit;
    refusing.host_free = free_counted;
    if (mode != PINNED) r->device->ops = &refusing;
    enum atsi_status status = run_turns(r, mode, &options, err);
    atsi_loaded_free(&r->loaded);
    r->device->ops->close(r->device);
    return status;
}

static enum atsi_status run_all(struct run *r, int argc, char **argv, struct atsi_error *err) {
    ATSI_TRY(atsi_model_open(&r->model, argv[1], err));
    uint32_t wanted = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 2048, n_ctx = r->model.plan.limits.n_ctx;
    if (n_ctx <= N_DECODE) return atsi_fail(err, ATSI_BAD_INPUT, "the plan's context is too short");
    r->n_prompt = wanted < N_DECODE ? N_DECODE : wanted < n_ctx - N_DECODE ? wanted : n_ctx - N_DECODE;
    r->ids = calloc(r->n_prompt, sizeof *r->ids);
    if (!r->ids) return atsi_fail(err, ATSI_FAILED, "out of memory");
    for (uint32_t i = 0; i < r->n_prompt; i++) r->ids[i] = (int32_t)(i * 7919u % r->model.plan.program.n_vocab);
    for (int mode = 0; mode < N_MODES; mode++) ATSI_TRY(run_mode(r, (enum mode)mode, argc > 2 ? argv[2] : "cuda", err));
    return ATSI_OK;
}

int main(int argc, char **argv) {
    struct run r = {0};
    struct atsi_error err = {0};
    if (argc < 2) {
        puts("left out: bench_pinning PLAN.atsp [DEVICE [TOKENS]] needs a plan");
        return 0;
    }
    enum atsi_status status = run_all(&r, argc, argv, &err);
    free(r.ids);
    atsi_model_close(&r.model);
    if (status != ATSI_OK) fprintf(stderr, "bench_pinning: %s\n", err.text);
    return status;
}
