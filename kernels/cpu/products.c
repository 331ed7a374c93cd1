#include "kernels/cpu/products.h"

#include <string.h>

#include "kernels/layout.h"

enum {
    PRODUCTS_MAX = 64,
    RESULT_ROWS_MAX = 8192, // of an item
    IN_ALIGNMENT = 64
};

struct product {
    struct atsi_matmul_args args;
    const void *source; // the input that args.in is a copy of,
    size_t in_bytes;    // and its size
    uint32_t tiles;     // of an item; its last one has the rest
    uint32_t end_item;  // items up to and with this product's
};

struct atsi_products {
    const struct atsi_matmul_kernels *k;
    size_t in_cap, in_bytes;
    atsi_products_kept *kept;
    void *kept_context;
    uint32_t n;
    struct product of[PRODUCTS_MAX];
    uint8_t in[] __attribute__((aligned(IN_ALIGNMENT)));
};

// The rows of an item.
struct run {
    const struct product *product;
    uint32_t first_row, n_rows;
};

static struct run find_run(const struct atsi_products *p, uint32_t item) {
    uint32_t i = 0;
    while (item >= p->of[i].end_item) i++;
    const struct product *product = &p->of[i];
    if (i > 0) item -= p->of[i - 1].end_item;
    uint32_t rows = product->tiles * ATSI_TILE_ROWS, first = item * rows, left = product->args.n_rows - first;
    return (struct run){product, first, left < rows ? left : rows};
}

// The run's rows as a matrix of their own: tiles and plain rows alike follow each other.
static void compute(const void *job, uint32_t item, void *result) {
    const struct atsi_products *p = job;
    struct run run = find_run(p, item);
    struct atsi_matmul_args args = run.product->args;
    args.weight = (const uint8_t *)args.weight + run.first_row * atsi_dtype_row_bytes(args.dtype, args.n_cols);
    if (args.bias != NULL) args.bias += run.first_row;
    args.n_rows = run.n_rows;
    args.out = result;
    args.add = false;
    p->k->matmul[args.dtype](&args, 0, atsi_matmul_tiles(run.n_rows));
}

static void put(const struct run *run, const float *sums) {
    float *out = run->product->args.out + run->first_row;
    if (!run->product->args.add) {
        memcpy(out, sums, run->n_rows * sizeof *out);
        return;
    }
    for (uint32_t i = 0; i < run->n_rows; i++) out[i] += sums[i];
}

static void keep(const void *job, uint32_t item, const void *result, int i_thread) {
    const struct atsi_products *p = job;
    struct run run = find_run(p, item);
    put(&run, result);
    if (p->kept != NULL) p->kept(p->kept_context, item, i_thread);
}

struct atsi_repeat_kind atsi_products_kind(size_t in_bytes) {
    return (struct atsi_repeat_kind){.job_bytes = sizeof(struct atsi_products) + in_bytes,
                                     .result_bytes = RESULT_ROWS_MAX * sizeof(float),
                                     .compute = compute,
                                     .keep = keep};
}

struct atsi_products *atsi_products_clear(void *job, const struct atsi_matmul_kernels *k, size_t in_bytes) {
    struct atsi_products *p = job;
    p->k = k;
    p->in_cap = in_bytes;
    p->in_bytes = 0;
    p->n = 0;
    p->kept = NULL;
    return p;
}

void atsi_products_when_kept(struct atsi_products *p, atsi_products_kept *kept, void *context) {
    p->kept = kept;
    p->kept_context = context;
}

// The job's copy of an input; products that follow each other mostly share it. NULL: no room.
static const void *copy_input(struct atsi_products *p, const void *in, size_t bytes) {
    for (uint32_t i = p->n; i-- > 0;)
        if (p->of[i].source == in && p->of[i].in_bytes >= bytes) return p->of[i].args.in;
    if (bytes > p->in_cap - p->in_bytes) return NULL;
    uint8_t *copy = p->in + p->in_bytes;
    memcpy(copy, in, bytes);
    size_t taken = (bytes + IN_ALIGNMENT - 1) / IN_ALIGNMENT * IN_ALIGNMENT;
    p->in_bytes = taken < p->in_cap - p->in_bytes ? p->in_bytes + taken : p->in_cap;
    return copy;
}

bool atsi_products_add(struct atsi_products *p, const struct atsi_matmul_args *args, size_t in_bytes, uint32_t tiles) {
    uint32_t n_tiles = atsi_matmul_tiles(args->n_rows), begin = p->n > 0 ? p->of[p->n - 1].end_item : 0;
    uint32_t n_items = (n_tiles + tiles - 1) / tiles;
    if (p->n == PRODUCTS_MAX || tiles > RESULT_ROWS_MAX / ATSI_TILE_ROWS || n_items > ATSI_REPEAT_ITEMS_MAX - begin)
        return false;
    const void *in = copy_input(p, args->in, in_bytes);
    if (in == NULL) return false;
    struct product *product = &p->of[p->n++];
    *product = (struct product){
        .args = *args, .source = args->in, .in_bytes = in_bytes, .tiles = tiles, .end_item = begin + n_items};
    product->args.in = in;
    return true;
}
