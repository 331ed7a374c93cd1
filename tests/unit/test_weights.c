// Weights on a simulated card: everything arrives where it belongs, units leave and come back with their bytes, a card that is too
// full keeps what fits, and every way in which pinned memory can be refused.
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/sim_device.h"
#include "runtime/reserve.h"
#include "runtime/weights.h"
#include "tests/support/check.h"
#include "tests/support/model_file.h"

enum {
    CHUNK = 64 << 10
};

struct bench {
    struct model_file file;
    struct atsi_device *device;
    struct atsi_weights weights;
    struct atsi_error err;
};

static void open_bench(struct bench *b, enum atsi_backend home, bool compress, struct atsi_sim_params sim) {
    memset(b, 0, sizeof *b);
    model_file_open(&b->file, home, compress);
    if (sim.memory_bytes == 0) sim.memory_bytes = 64 << 20;
    sim.chunk_bytes = CHUNK;
    check_ok(atsi_sim_open(&sim, &b->device, &b->err), b->err);
}

static enum atsi_status load(struct bench *b, uint64_t beside, uint64_t reserve, bool strict) {
    struct atsi_weights_params params = {.model = &b->file.model,
                                         .device = b->device,
                                         .beside_bytes = beside,
                                         .reserve_bytes = reserve,
                                         .strict = strict};
    return atsi_weights_load(&b->weights, &params, &b->err);
}

static void close_bench(struct bench *b) {
    atsi_weights_free(&b->weights);
    assert_int_equal(atsi_sim_n_alive(b->device), 0);
    b->device->ops->close(b->device);
    model_file_close(&b->file);
}

static void check_device_tensor(struct bench *b, uint32_t t) {
    uint64_t bytes = b->file.model.plan.program.tensors[t].size_bytes;
    void *copy = malloc(bytes);
    check_ok(b->device->ops->copy_to_host(b->weights.upload.stream, copy, b->weights.device[t], bytes, &b->err),
             b->err);
    assert_memory_equal(copy, b->file.bytes[t], bytes);
    free(copy);
}

// Whatever has an address holds the tensor's bytes; every unit finds its big tensors on its side, and the range has no chunk too many.
static void check_all(struct bench *b) {
    const struct atsi_weights *w = &b->weights;
    const struct atsi_program *p = &b->file.model.plan.program;
    uint64_t backed = w->range->backed_bytes;
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        if (w->device[t]) check_device_tensor(b, t);
        if (w->host[t]) assert_memory_equal(w->host[t], b->file.bytes[t], p->tensors[t].size_bytes);
        if (atsi_tensor_is_small(&p->tensors[t])) assert_true(w->host[t] && w->device[t]);
    }
    for (uint32_t u = 0; u < p->n_units; u++) {
        uint32_t cursor = 0, t;
        while (atsi_unit_next_big_tensor(p, &p->units[u], &cursor, &t))
            assert_non_null(w->homes[u] == ATSI_GPU ? w->device[t] : w->host[t]);
    }
    assert_true(backed >= w->filled_bytes && backed < w->filled_bytes + CHUNK);
}

static void everything_is_loaded(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct bench b;
        enum atsi_backend home = i % 2 ? ATSI_GPU : ATSI_CPU;
        open_bench(&b, home, i >= 2, (struct atsi_sim_params){.delay_seed = (uint32_t)i + 1, .delay_max_us = 100});
        check_ok(load(&b, 1000, 0, true), b.err);
        check_all(&b);
        assert_int_equal(b.weights.resident.n_items, home == ATSI_GPU ? 3 : 0);
        assert_int_equal(b.weights.n_resident, b.weights.resident.n_items);
        assert_int_equal(b.weights.host_memory, ATSI_HOST_REGISTERED);
        if (home == ATSI_CPU) assert_int_equal(b.weights.pinned_bytes, b.weights.host_bytes);
        for (uint32_t u = 0; u < b.file.model.plan.program.n_units; u++) assert_int_equal(b.weights.homes[u], home);
        close_bench(&b);
    }
}

static void the_least_valuable_unit_stands_last(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, ATSI_GPU, false, (struct atsi_sim_params){0});
    check_ok(load(&b, 0, 0, true), b.err);
    const struct atsi_resident *r = &b.weights.resident;
    assert_int_equal(r->items[0].unit, model_file_unit(&b.file, "o"));
    assert_int_equal(r->items[1].unit, model_file_unit(&b.file, "q"));
    assert_int_equal(r->items[2].unit, model_file_unit(&b.file, "exps"));
    assert_int_equal(atsi_resident_fit(r, r->end_bytes[3]), 3);
    assert_int_equal(atsi_resident_fit(r, r->end_bytes[3] - 1), 2);
    assert_int_equal(atsi_resident_fit(r, 0), 0);
    close_bench(&b);
}

// Every way from one number of resident units to another, with stored and with compressed tensors.
static void units_leave_and_come_back(void **state) {
    (void)state;
    for (int compress = 0; compress < 2; compress++) {
        struct bench b;
        open_bench(&b, ATSI_GPU, compress != 0, (struct atsi_sim_params){.delay_seed = 3, .delay_max_us = 50});
        check_ok(load(&b, 0, 0, true), b.err);
        for (uint32_t low = 0; low < 3; low++)
            for (uint32_t high = low + 1; high <= 3; high++) {
                bool refused = false;
                check_ok(atsi_weights_release(&b.weights, low, &b.err), b.err);
                assert_int_equal(b.weights.n_resident, low);
                check_all(&b);
                while (b.weights.filled_bytes < b.weights.resident.end_bytes[high] && !refused)
                    check_ok(atsi_weights_refill(&b.weights, high, 0, &refused, &b.err), b.err);
                assert_false(refused);
                assert_int_equal(b.weights.n_resident, low); // nothing has changed yet
                check_ok(atsi_weights_settle(&b.weights, &b.err), b.err);
                assert_int_equal(b.weights.n_resident, high);
                check_all(&b);
                if (high == 3) continue;
                check_ok(atsi_weights_refill(&b.weights, 3, 1e18, &refused, &b.err), b.err);
                check_ok(atsi_weights_settle(&b.weights, &b.err), b.err);
                check_all(&b);
            }
        assert_int_equal(b.weights.n_resident, 3);
        assert_int_equal(b.weights.unpacked_bytes != 0, compress); // only compressed tensors need a copy of their own
        close_bench(&b);
    }
}

// A piece that was brought back is dropped when the unit is not complete.
static void half_a_unit_is_dropped(void **state) {
    (void)state;
    struct bench b;
    bool refused;
    open_bench(&b, ATSI_GPU, false, (struct atsi_sim_params){0});
    check_ok(load(&b, 0, 0, true), b.err);
    check_ok(atsi_weights_release(&b.weights, 1, &b.err), b.err);
    uint64_t before = b.weights.filled_bytes;
    check_ok(atsi_weights_refill(&b.weights, 3, 0, &refused, &b.err), b.err);
    assert_true(b.weights.filled_bytes > before);
    check_ok(atsi_weights_settle(&b.weights, &b.err), b.err);
    assert_int_equal(b.weights.n_resident, 1);
    assert_int_equal(b.weights.filled_bytes, before);
    check_all(&b);
    close_bench(&b);
}

// ---- experts resident one by one ----------------------------------------------------------------------------------------

static void open_mixed(struct bench *b, bool compress) {
    struct atsi_sim_params sim = {.memory_bytes = 64 << 20, .chunk_bytes = CHUNK, .delay_seed = 5, .delay_max_us = 50};
    memset(b, 0, sizeof *b);
    model_file_open_mixed(&b->file, compress);
    check_ok(atsi_sim_open(&sim, &b->device, &b->err), b->err);
}

// Experts 2 and 0 stand in this order, and both sides have a table that says so; or nothing is there.
static void check_experts(struct bench *b, bool are_there) {
    static const int32_t slots[] = {1, -1, 0, -1};
    static const uint16_t ids[] = {2, 0};
    const struct atsi_experts *e = &b->weights.experts;
    uint32_t u = model_file_unit(&b->file, "exps"), router = model_file_unit(&b->file, "o");
    uint64_t bytes = atsi_expert_bytes(&b->file.model.plan.program, u);
    const struct atsi_experts_ref *ref = &e->refs[ATSI_GPU][u];
    assert_true(e->n_routers == 1 && e->routers[0].are_there == are_there);
    assert_true((ref->data != NULL) == are_there && (ref->slots != NULL) == are_there);
    assert_true(ref->slots == e->refs[ATSI_GPU][router].slots && !e->refs[ATSI_CPU][u].data);
    assert_true(e->refs[ATSI_CPU][router].slots == (are_there ? e->routers[0].slots : NULL));
    assert_true(e->refs[ATSI_CPU][u].slots == e->refs[ATSI_CPU][router].slots);
    if (!are_there) return;
    int32_t table[4];
    uint8_t *found = malloc(bytes);
    check_ok(b->device->ops->copy_to_host(b->weights.upload.stream, table, ref->slots, sizeof table, &b->err), b->err);
    assert_memory_equal(table, slots, sizeof slots);
    assert_memory_equal(e->routers[0].slots, slots, sizeof slots);
    for (uint32_t i = 0; i < 2; i++) {
        const char *at = (const char *)ref->data + i * bytes;
        check_ok(b->device->ops->copy_to_host(b->weights.upload.stream, found, at, bytes, &b->err), b->err);
        assert_memory_equal(found, b->file.bytes[model_file_tensor(&b->file, "exps")] + ids[i] * bytes, bytes);
    }
    free(found);
}

static void single_experts_leave_and_come_back(void **state) {
    (void)state;
    struct bench b;
    bool refused;
    open_mixed(&b, false);
    check_ok(load(&b, 0, 0, true), b.err);
    uint32_t n = b.weights.resident.n_items, k = 0;
    while (!b.weights.resident.items[k].experts) k++;
    assert_int_equal(n, 3); // "o", "q", and the experts behind "o"
    check_all(&b);
    check_experts(&b, true);
    for (uint32_t low = 0; low < n; low++) {
        check_ok(atsi_weights_release(&b.weights, low, &b.err), b.err);
        check_all(&b);
        check_experts(&b, low > k);
        assert_int_equal(b.weights.homes[model_file_unit(&b.file, "exps")], ATSI_CPU);
        while (b.weights.filled_bytes < b.weights.resident.end_bytes[n])
            check_ok(atsi_weights_refill(&b.weights, n, 0, &refused, &b.err), b.err);
        check_ok(atsi_weights_settle(&b.weights, &b.err), b.err);
        check_all(&b);
        check_experts(&b, true);
    }
    close_bench(&b);
}

static void a_full_card_has_no_single_experts(void **state) {
    (void)state;
    struct bench b;
    open_mixed(&b, false);
    uint64_t bytes = atsi_expert_bytes(&b.file.model.plan.program, model_file_unit(&b.file, "exps"));
    check_ok(load(&b, (64 << 20) - (2 << 20) + bytes, 0, false), b.err);
    assert_true(b.weights.n_resident < b.weights.resident.n_items);
    check_experts(&b, false);
    close_bench(&b);
}

static void compressed_experts_are_not_resident_one_by_one(void **state) {
    (void)state;
    struct bench b;
    open_mixed(&b, true);
    check_ok(load(&b, 0, 0, true), b.err);
    assert_int_equal(b.weights.experts.n_routers, 0);
    assert_null(b.weights.experts.refs[ATSI_GPU]);
    assert_int_equal(b.weights.resident.n_items, 2);
    check_all(&b);
    close_bench(&b);
}

// ---- a card that is too full --------------------------------------------------------------------------------------------

struct others {
    uint64_t bytes, more; // more: after n_before looks
    uint32_t n_before;
};

static uint64_t others_hold(void *context) {
    struct others *o = context;
    if (o->n_before > 0) o->n_before--;
    return o->bytes + (o->n_before > 0 ? 0 : o->more);
}

static uint64_t all_bytes(struct bench *b) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < b->file.model.plan.program.n_tensors; t++)
        bytes += b->file.model.plan.program.tensors[t].size_bytes;
    return bytes;
}

static void a_full_card_keeps_what_fits(void **state) {
    (void)state;
    static const char *const last[] = {"exps", "q", "o"};
    for (uint32_t n = 0; n < 3; n++) {
        struct bench b;
        struct others others = {0};
        char text[512];
        open_bench(&b, ATSI_GPU, false, (struct atsi_sim_params){.taken_bytes = others_hold, .taken_context = &others});
        uint64_t beside = 1 << 20, reserve = 1 << 20, gone = 0;
        for (uint32_t i = 0; i <= n; i++) {
            gone += b.file.model.plan.program.tensors[model_file_tensor(&b.file, last[i])].size_bytes;
        }
        others.bytes = (64 << 20) - (all_bytes(&b) + beside + reserve + 2 * CHUNK - gone);
        check_ok(load(&b, beside, reserve, false), b.err);
        assert_int_equal(b.weights.n_resident, 2 - n);
        check_all(&b);
        atsi_weights_describe_cut(&b.weights, text, sizeof text);
        assert_non_null(strstr(text, "of its 3 resident units stay on the CPU"));
        assert_null(strchr(text, '\n'));
        atsi_weights_free(&b.weights);
        assert_int_equal(load(&b, beside, reserve, true), ATSI_FAILED);
        check_message(b.err, "--strict", "MiB less free", "atsi-plan MODEL.gguf --vram");
        close_bench(&b);
    }
}

static void what_always_stays_needs_room(void **state) {
    (void)state;
    struct bench b;
    struct others others = {.bytes = (64 << 20) - (3 << 20)};
    open_bench(&b, ATSI_GPU, false, (struct atsi_sim_params){.taken_bytes = others_hold, .taken_context = &others});
    assert_int_equal(load(&b, 4 << 20, 0, false), ATSI_FAILED);
    check_message(b.err, "the card has 3 MiB free", "have to be there", "--device cpu");
    atsi_weights_free(&b.weights);
    assert_int_equal(load(&b, 3 << 20, 0, false), ATSI_FAILED); // nothing is left for small tensors
    check_message(b.err, "the card has");
    atsi_weights_free(&b.weights);
    check_ok(load(&b, 2 << 20, 100 << 20, false), b.err); // a reserve alone is no reason to fail
    assert_int_equal(b.weights.n_resident, 0);
    close_bench(&b);
}

// Another program takes memory at any moment of the loading: fewer units, or the plain refusal, and nothing is lost.
static void others_take_memory_while_it_loads(void **state) {
    (void)state;
    uint32_t n_cut = 0;
    for (uint32_t moment = 1; moment < 60; moment++) {
        struct bench b;
        struct others others = {.more = 62 << 20, .n_before = moment};
        open_bench(&b, ATSI_GPU, false, (struct atsi_sim_params){.taken_bytes = others_hold, .taken_context = &others});
        enum atsi_status status = load(&b, 1000, 0, false);
        if (status == ATSI_OK) {
            check_all(&b);
            n_cut += b.weights.n_resident < 3;
        } else {
            check_message(b.err, "MiB free");
        }
        close_bench(&b);
    }
    assert_true(n_cut > 5);
}

// ---- a card that cannot move memory -------------------------------------------------------------------------------------

static const struct atsi_device_ops *movable;
static void *start; // of the range, known when it is backed

static enum atsi_status create_fixed(struct atsi_device *d, uint64_t bytes, struct atsi_range **out,
                                     struct atsi_error *err) {
    ATSI_TRY(movable->range_create(d, bytes, out, err));
    start = (*out)->dev;
    (*out)->dev = NULL;
    (*out)->chunk_bytes = 0;
    return ATSI_OK;
}

// All at once or nothing, and then for ever.
static enum atsi_status back_fixed(struct atsi_device *d, struct atsi_range *r, uint64_t bytes,
                                   struct atsi_error *err) {
    assert_null(r->dev);
    r->chunk_bytes = CHUNK;
    enum atsi_status status = movable->range_back(d, r, bytes, err);
    if (status == ATSI_OK) r->dev = start;
    if (status != ATSI_OK) check_ok(movable->range_back(d, r, 0, err), *err);
    r->chunk_bytes = 0;
    return status;
}

// It is loaded as far as there is room, whatever others take meanwhile, and the budget does not move.
static void a_fixed_range_is_loaded_once(void **state) {
    (void)state;
    uint32_t n_cut = 0;
    for (uint32_t moment = 1; moment < 60; moment += 3) {
        struct bench b;
        struct others others = {.more = 62 << 20, .n_before = moment};
        open_bench(&b, ATSI_GPU, false, (struct atsi_sim_params){.taken_bytes = others_hold, .taken_context = &others});
        struct atsi_device_ops fixed = *b.device->ops;
        movable = b.device->ops;
        fixed.range_create = create_fixed;
        fixed.range_back = back_fixed;
        b.device->ops = &fixed;
        if (load(&b, 1000, 0, false) == ATSI_OK) {
            enum atsi_reserve_change change;
            struct atsi_reserve reserve = {.weights = &b.weights, .bytes = UINT64_MAX};
            check_all(&b);
            n_cut += b.weights.n_resident < 3;
            check_ok(atsi_reserve_poll(&reserve, 5e6, &change, &b.err), b.err);
            assert_int_equal(reserve.n_polls, 0);
        } else {
            check_message(b.err, "MiB free");
        }
        close_bench(&b);
    }
    assert_true(n_cut > 5);
}

// ---- pinned memory ------------------------------------------------------------------------------------------------------

struct refusal {
    bool register_too;
    uint64_t limit; // of what can be pinned beside it
    enum atsi_host_memory memory;
    enum atsi_travel matrix, experts; // of a unit "q" and of "exps"
};

static void check_refusal(struct bench *b, const struct refusal *r) {
    char text[1024];
    assert_int_equal(b->weights.host_memory, r->memory);
    assert_int_equal(b->weights.travel[model_file_unit(&b->file, "q")], r->matrix);
    assert_int_equal(b->weights.travel[model_file_unit(&b->file, "exps")], r->experts);
    atsi_weights_describe_pinning(&b->weights, text, sizeof text);
    assert_int_equal(text[0] == 0, r->memory == ATSI_HOST_REGISTERED);
    assert_null(strchr(text, '\n'));
    // The cost: what all units take on the CPU (400, 300, 100 and three times 20 us), beside the plan's figures.
    assert_int_equal(strstr(text, "; a token may take 0.9 ms instead of 0.2, ") != NULL,
                     r->memory == ATSI_HOST_PLAIN || r->memory == ATSI_HOST_PARTLY);
    assert_int_equal(strstr(text, "travel through a pinned ring of") != NULL, r->experts == ATSI_TRAVELS_STAGED);
    assert_int_equal(strstr(text, "the GPU cannot help with the others") != NULL,
                     r->memory == ATSI_HOST_PLAIN && r->experts == ATSI_TRAVELS_NOT);
}

static void pinned_memory_is_refused(void **state) {
    (void)state;
    static const struct refusal cases[] = {
        {true, 0, ATSI_HOST_COPIED, ATSI_TRAVELS_PINNED, ATSI_TRAVELS_PINNED},
        {true, 1, ATSI_HOST_PLAIN, ATSI_TRAVELS_NOT, ATSI_TRAVELS_NOT},                 // not even staging buffers
        {true, 1500 << 10, ATSI_HOST_PLAIN, ATSI_TRAVELS_STAGED, ATSI_TRAVELS_STAGED},  // a ring, and no room beside it
        {true, 2300 << 10, ATSI_HOST_PARTLY, ATSI_TRAVELS_PINNED, ATSI_TRAVELS_STAGED}, // both matrices beside the ring
        {false, 1, ATSI_HOST_REGISTERED, ATSI_TRAVELS_PINNED, ATSI_TRAVELS_PINNED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int home = 0; home < 2; home++) {
            struct bench b;
            bool refused;
            open_bench(
                &b, (enum atsi_backend)home, false,
                (struct atsi_sim_params){.refuse_register = cases[i].register_too, .pinned_bytes = cases[i].limit});
            check_ok(load(&b, 1000, 0, false), b.err);
            check_all(&b);
            if (home == ATSI_CPU) {
                check_refusal(&b, &cases[i]);
            } else {
                check_ok(atsi_weights_release(&b.weights, 0, &b.err), b.err);
                check_all(&b);
                assert_int_equal(b.weights.travel[model_file_unit(&b.file, "exps")],
                                 cases[i].register_too ? ATSI_TRAVELS_NOT : ATSI_TRAVELS_PINNED);
                check_ok(atsi_weights_refill(&b.weights, 3, 1e18, &refused, &b.err), b.err);
                check_ok(atsi_weights_settle(&b.weights, &b.err), b.err);
                assert_int_equal(b.weights.n_resident, 3);
                check_all(&b);
            }
            close_bench(&b);
        }
}

// What the run pins after the weights has its place: it is left where there is little.
static void later_pinned_memory_has_its_place(void **state) {
    (void)state;
    for (uint64_t limit = 1 << 20; limit <= 8 << 20; limit += 150 << 10) {
        struct bench b;
        void *host, *dev;
        bool compress = limit / (150 << 10) % 2; // then tensors are unpacked, into pinned memory where there is some
        open_bench(&b, ATSI_CPU, compress, (struct atsi_sim_params){.refuse_register = true, .pinned_bytes = limit});
        struct atsi_weights_params params = {.model = &b.file.model, .device = b.device, .beside_host_bytes = 1 << 20};
        check_ok(atsi_weights_load(&b.weights, &params, &b.err), b.err);
        check_all(&b);
        check_ok(b.device->ops->host_alloc(b.device, 1 << 20, &host, &dev, &b.err), b.err);
        b.device->ops->host_free(b.device, host);
        close_bench(&b);
    }
}

static bool stop_at_once(void *context, uint64_t done_bytes, uint64_t total_bytes) {
    (void)context;
    assert_true(done_bytes <= total_bytes);
    return false;
}

static void loading_can_be_interrupted(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, ATSI_GPU, false, (struct atsi_sim_params){0});
    struct atsi_weights_params params = {.model = &b.file.model, .device = b.device, .progress = stop_at_once};
    assert_int_equal(atsi_weights_load(&b.weights, &params, &b.err), ATSI_INTERRUPTED);
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_loaded),
        cmocka_unit_test(the_least_valuable_unit_stands_last),
        cmocka_unit_test(units_leave_and_come_back),
        cmocka_unit_test(half_a_unit_is_dropped),
        cmocka_unit_test(single_experts_leave_and_come_back),
        cmocka_unit_test(a_full_card_has_no_single_experts),
        cmocka_unit_test(compressed_experts_are_not_resident_one_by_one),
        cmocka_unit_test(a_full_card_keeps_what_fits),
        cmocka_unit_test(what_always_stays_needs_room),
        cmocka_unit_test(others_take_memory_while_it_loads),
        cmocka_unit_test(a_fixed_range_is_loaded_once),
        cmocka_unit_test(pinned_memory_is_refused),
        cmocka_unit_test(later_pinned_memory_has_its_place),
        cmocka_unit_test(loading_can_be_interrupted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
