#include "tests/support/division_case.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/features.h"
#include "tests/support/check.h"

enum {
    N_PRODUCTS = 3,
    FIRST_PRODUCT = 1, // op
    CANARY = 0xff
};

struct division {
    const struct division_case *x;
    struct atsi_device *d;
    struct op_case c;
    int32_t out[N_PRODUCTS]; // buffers of the products
    int32_t ids;
    char what[120];
};

static uint32_t n_ids(const struct division *v) { return v->x->n_tokens * v->x->n_used; }

static int32_t product(struct division *v, int32_t in, bool in_per_slot, struct test_random *r, struct quant_rng *rng) {
    const struct division_case *x = v->x;
    int32_t out = op_case_buffer(&v->c, x->n_used * x->width, ATSI_ROWS_TOKENS, false, NULL, 0);
    int32_t weight = gpu_case_weight(&v->c, x->dtype, x->width, x->width, x->n_experts, QUANT_RANDOM, rng);
    int32_t bias = op_case_tensor(&v->c, x->width, x->n_experts, 1, r, 1.0f);
    struct atsi_op *op = op_case_op(&v->c, ATSI_OP_EXPERTS);
    op->in[0] = op_case_view(&v->c, in);
    op->in[1] = op_case_view(&v->c, v->ids);
    op->out[0] = op_case_view(&v->c, out);
    op->tensor[0] = weight;
    op->tensor[1] = bias;
    op->u.experts = (struct atsi_experts_params){x->n_experts, x->n_used, in_per_slot};
    return out;
}

static void build(struct division *v, struct test_random *r) {
    const struct division_case *x = v->x;
    struct quant_rng rng = {(uint64_t)x->dtype + 1};
    op_case_init(&v->c, x->n_tokens, 0);
    v->ids =
        op_case_router(&v->c, &(struct atsi_router_params){x->n_experts, x->n_used, ATSI_ROUTER_SOFTMAX, true, 1.0f},
                       false, r)
            ->out[0]
            .buffer;
    int32_t in = op_case_buffer(&v->c, x->width, ATSI_ROWS_TOKENS, false, r, 1.0f);
    v->out[0] = product(v, in, false, r, &rng);
    v->out[1] = product(v, in, false, r, &rng);
    v->out[2] = product(v, v->out[0], true, r, &rng);
    op_case_make_resident(&v->c, x->n_experts, x->resident, r);
}

// ---- one side's results ---------------------------------------------------------------------------------------------

struct results {
    float *out[N_PRODUCTS];
};

static struct results take_results(const struct division *v) {
    struct results r;
    for (int i = 0; i < N_PRODUCTS; i++) r.out[i] = op_case_copy(&v->c, v->out[i]);
    return r;
}

static void free_results(struct results *r) {
    for (int i = 0; i < N_PRODUCTS; i++) free(r->out[i]);
}

static void set_canaries(struct division *v) {
    for (int i = 0; i < N_PRODUCTS; i++)
        memset(v->c.buffers[v->out[i]], CANARY, (size_t)n_ids(v) * v->x->width * sizeof(float));
    if (v->c.mine != NULL) memset(v->c.mine, 0, v->c.n_mine * sizeof *v->c.mine);
}

static bool is_canary(const float *slot, uint32_t width) {
    const uint8_t *bytes = (const uint8_t *)slot;
    for (size_t i = 0; i < width * sizeof *slot; i++)
        if (bytes[i] != CANARY) return false;
    return true;
}

// The buffers hold one side's part of what it computed undivided, and nothing else was written.
static void check_side(const struct division *v, const struct results *undivided, bool device, const char *side) {
    for (int i = 0; i < N_PRODUCTS; i++) {
        bool whole = v->c.whole_ops >> (FIRST_PRODUCT + i) & 1;
        for (uint32_t k = 0; k < n_ids(v); k++) {
            const float *found = v->c.buffers[v->out[i]] + (size_t)k * v->x->width,
                        *wanted = undivided->out[i] + (size_t)k * v->x->width;
            bool own = whole || (v->c.mine[k] >= 0) == device;
            if (own ? !test_same_bits(found, wanted, v->x->width * sizeof *found) : !is_canary(found, v->x->width))
                fail_msg("%s, %s: product %d of token %u, slot %u: %s", v->what, side, i, k / v->x->n_used,
                         k % v->x->n_used, own ? "other results than undivided" : "written by the wrong side");
        }
    }
}

// From the table alone, whatever the router found out.
static void check_mine(const struct division *v) {
    const int32_t *ids = (const int32_t *)(const void *)v->c.buffers[v->ids];
    for (uint32_t t = 0; t < v->x->n_tokens; t++) {
        const int32_t *row = ids + t * v->x->n_used;
        uint32_t n_resident = 0;
        for (uint32_t s = 0; s < v->x->n_used; s++) n_resident += v->c.resident_slots[row[s]] >= 0;
        for (uint32_t s = 0; s < v->x->n_used; s++)
            assert_int_equal(v->c.mine[t * v->x->n_used + s], s < v->c.gpu_slots[n_resident] ? row[s] : -1);
    }
}

static void run_host_part(struct division *v, const struct results *undivided) {
    static const char *const ISAS[] = {"reference", "avx2", "avxvnni", "avx512"};
    enum atsi_isa isa;
    for (size_t i = 0; i < sizeof ISAS / sizeof *ISAS; i++) {
        if (atsi_isa_select(ISAS[i], &isa, NULL) != ATSI_OK) continue;
        int32_t *mine = v->c.mine; // the device's, which says what is the host's
        v->c.mine = NULL;
        set_canaries(v);
        v->c.mine = mine;
        op_case_run(&v->c, ISAS[i], 1 + 2 * (int)(i % 2), i % 2 ? 2 : v->x->n_tokens, 0);
        check_side(v, undivided, false, ISAS[i]);
    }
}

// ---- both sides together --------------------------------------------------------------------------------------------

// Memory of a device's copies: `rows` of a host in mapped memory, of the device in its own.
struct copies {
    struct atsi_device *d;
    struct atsi_stream *s;
    struct atsi_error err;
    void *host, *host_dev, *dev, *mine;
    size_t bytes;
};

#define TRY(x, call) check_ok((x)->d->ops->call, (x)->err)

static void open_copies(struct copies *k, struct atsi_device *d, size_t bytes, const int32_t *mine, size_t n_mine) {
    memset(k, 0, sizeof *k);
    k->d = d;
    k->bytes = bytes;
    TRY(k, stream_create(d, &k->s, &k->err));
    TRY(k, host_alloc(d, bytes, &k->host, &k->host_dev, &k->err));
    TRY(k, alloc(d, bytes, &k->dev, &k->err));
    TRY(k, alloc(d, n_mine * sizeof *mine, &k->mine, &k->err));
    TRY(k, copy_to_device(k->s, k->mine, mine, n_mine * sizeof *mine, &k->err));
}

static void fill_copies(struct copies *k, const void *host, const void *device) {
    TRY(k, stream_sync(k->s, &k->err));
    memcpy(k->host, host, k->bytes);
    TRY(k, copy_to_device(k->s, k->dev, device, k->bytes, &k->err));
}

// What stands in the device's memory, to be freed.
static void *device_contents(struct copies *k) {
    void *found = malloc(k->bytes);
    if (found == NULL) abort();
    TRY(k, copy_to_host(k->s, found, k->dev, k->bytes, &k->err));
    TRY(k, stream_sync(k->s, &k->err));
    return found;
}

static void close_copies(struct copies *k) {
    TRY(k, stream_sync(k->s, &k->err));
    k->d->ops->host_free(k->d, k->host);
    k->d->ops->free(k->d, k->dev);
    k->d->ops->free(k->d, k->mine);
    k->d->ops->stream_destroy(k->s);
}

// Each side's last product gets what it lacks from the other.
static void check_together(struct division *v, const struct results *on_device, const struct results *on_host,
                           const struct results *device_part, const struct results *host_part) {
    const int last = N_PRODUCTS - 1;
    uint32_t width = v->x->width, n_used = v->x->n_used, stride = n_used * width;
    size_t bytes = (size_t)n_ids(v) * width * sizeof(float);
    float *wanted = op_case_copy(&v->c, v->out[last]);
    for (uint32_t k = 0; k < n_ids(v); k++)
        memcpy(wanted + (size_t)k * width, (v->c.mine[k] >= 0 ? on_device : on_host)->out[last] + (size_t)k * width,
               width * sizeof *wanted);
    struct copies k;
    open_copies(&k, v->d, bytes, v->c.mine, v->c.n_mine);
    fill_copies(&k, host_part->out[last], device_part->out[last]);
    TRY(&k, copy_slots(k.s, k.dev, stride, k.host_dev, stride, width, n_used, k.mine, true, v->x->n_tokens, &k.err));
    void *found = device_contents(&k);
    assert_true(test_same_bits(found, wanted, bytes));
    free(found);
    fill_copies(&k, host_part->out[last], device_part->out[last]);
    TRY(&k, copy_slots(k.s, k.host_dev, stride, k.dev, stride, width, n_used, k.mine, false, v->x->n_tokens, &k.err));
    TRY(&k, stream_sync(k.s, &k.err));
    assert_true(test_same_bits(k.host, wanted, bytes));
    close_copies(&k);
    free(wanted);
}

void division_case_check(const struct division_case *x, struct atsi_device *d) {
    enum {
        FEW = 4 // of one token more than a multiple the last round has one, which may fetch
    };
    struct division v = {.x = x, .d = d};
    struct test_random r = {x->n_tokens + 100 * x->n_used};
    const uint32_t chunks[] = {x->n_tokens, x->n_tokens < FEW ? x->n_tokens : FEW};
    snprintf(v.what, sizeof v.what, "%s, %u of %u experts, %u tokens, %.2f resident", atsi_dtype_name(x->dtype),
             x->n_used, x->n_experts, x->n_tokens, (double)x->resident);
    build(&v, &r);
    op_case_run(&v.c, "reference", 1, x->n_tokens, 0);
    struct results on_host = take_results(&v), on_device[2];
    for (int k = 0; k < 2; k++) {
        gpu_case_run(&v.c, d, chunks[k], 0, false);
        on_device[k] = take_results(&v);
    }
    op_case_divide(&v.c, x->n_used, x->least, x->part ? 1u << (FIRST_PRODUCT + 1) : 0, &r);
    for (int k = 0; k < 4; k++) {
        set_canaries(&v);
        v.c.fetches = k % 2; // one row
        gpu_case_run(&v.c, d, chunks[k % 2], 0, k >= 2);
        check_mine(&v);
        check_side(&v, &on_device[k % 2], true, "device");
        if (k != 1) continue;
        struct results device_part = take_results(&v), host_part;
        run_host_part(&v, &on_host);
        host_part = take_results(&v);
        check_together(&v, &on_device[k % 2], &on_host, &device_part, &host_part);
        free_results(&device_part);
        free_results(&host_part);
    }
    free_results(&on_host);
    for (int k = 0; k < 2; k++) free_results(&on_device[k]);
    op_case_free(&v.c);
}

// ---- copies alone ---------------------------------------------------------------------------------------------------

// Rows of device and host are `beside` elements longer than their slots, which nothing may touch.
static void copies_case(struct atsi_device *d, uint32_t width, uint32_t n_slots, uint32_t n_rows, uint32_t beside) {
    struct test_random r = {width + n_slots};
    uint32_t stride = n_slots * width + beside, n = n_rows * stride, n_mine = n_rows * n_slots;
    int32_t *mine = calloc(n_mine, sizeof *mine);
    uint32_t *host = calloc(n, sizeof *host), *device = calloc(n, sizeof *device), *wanted[2];
    for (uint32_t i = 0; i < n_mine; i++) mine[i] = (int32_t)test_random_below(&r, 3) - 1;
    for (uint32_t i = 0; i < n; i++) host[i] = 2 * i, device[i] = 2 * i + 1;
    for (int k = 0; k < 2; k++) {
        wanted[k] = calloc(n, sizeof *wanted[k]);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t row = i / stride, slot = i % stride / width;
            bool from_device = slot >= n_slots ? k == 0 : mine[row * n_slots + slot] >= 0;
            wanted[k][i] = (from_device ? device : host)[i];
        }
    }
    struct copies k;
    open_copies(&k, d, n * sizeof *host, mine, n_mine);
    fill_copies(&k, host, device);
    TRY(&k, copy_slots(k.s, k.dev, stride, k.host_dev, stride, width, n_slots, k.mine, true, n_rows, &k.err));
    void *found = device_contents(&k);
    assert_memory_equal(found, wanted[0], n * sizeof *host);
    free(found);
    fill_copies(&k, host, device);
    TRY(&k, copy_slots(k.s, k.host_dev, stride, k.dev, stride, width, n_slots, k.mine, false, n_rows, &k.err));
    TRY(&k, stream_sync(k.s, &k.err));
    assert_memory_equal(k.host, wanted[1], n * sizeof *host);
    TRY(&k, copy_slots(k.s, k.host_dev, stride, k.dev, stride, width, n_slots, k.mine, false, 0, &k.err)); // no rows
    close_copies(&k);
    free(mine);
    free(host);
    free(device);
    free(wanted[0]);
    free(wanted[1]);
}

void division_case_check_copies(struct atsi_device *d) {
    copies_case(d, 64, 4, 3, 0);
    copies_case(d, 37, 8, 9, 0);
    copies_case(d, 2880, 4, 1, 8);
    copies_case(d, 1, 64, 5, 3);
    copies_case(d, 1028, 10, 2, 1);
}
