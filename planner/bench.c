#include "planner/bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats/base/clock.h"
#include "formats/base/sort.h"
#include "kernels/narrow_call.h"

enum {
    SMALL_PAGE_BYTES = 4096,
    MAX_CALLS = ATSI_BENCH_ROW_MAX, // of a pass
    CPU_CALLS = 16,                 // on the CPU, where every pass takes other weights
    MAX_BLOCKS = 128,               // allocations of one bench
    MIN_SAMPLES = 3,
    MAX_SAMPLES = 15,
};
static const uint64_t gpu_cold_bytes = 256 << 20; // over any GPU's cache
static const uint64_t least_cpu_cold_bytes = 256 << 20, most_cpu_cold_bytes = UINT64_C(2) << 30;
static const double sampling_us = 30e3; // spent on one operation, if that is enough for MIN_SAMPLES
static const double pause_us = 60;      // before a list of its own

// ---- sides --------------------------------------------------------------------------------------------------------

static uint64_t state_bytes(const struct atsi_plan *plan, int32_t state) {
    const struct atsi_plan_limits *l = &plan->limits;
    if (state == ATSI_NONE) return 0;
    return atsi_aligned(atsi_state_bytes(&plan->program.states[state], l->n_ctx, l->chunk, l->kv_type)) +
           ATSI_ALIGNMENT;
}

// Weights and states of an operation as they stand in the arena.
static uint64_t operand_bytes(const struct atsi_plan *plan, const struct atsi_op *op) {
    uint64_t bytes = state_bytes(plan, op->state);
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++)
        if (op->tensor[i] != ATSI_NONE) bytes += atsi_aligned(plan->program.tensors[op->tensor[i]].size_bytes);
    return bytes;
}

// Eight times the last-level cache: those of servers keep part of what is read in turns even when it is twice as large as they are.
static uint64_t cpu_cold_bytes(void) {
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    uint64_t bytes = cache > 0 ? 8 * (uint64_t)cache : 0;
    if (bytes < least_cpu_cold_bytes) bytes = least_cpu_cold_bytes;
    return bytes < most_cpu_cold_bytes ? bytes : most_cpu_cold_bytes;
}

// Over the caches, but no more than the model has, and room for any one operation.
static uint64_t arena_bytes(const struct atsi_plan *plan, uint64_t cold_bytes) {
    uint64_t model = 0, largest = ATSI_ALIGNMENT;
    for (uint32_t i = 0; i < plan->program.n_ops; i++) {
        uint64_t bytes = operand_bytes(plan, &plan->program.ops[i]);
        model += bytes;
        if (bytes > largest) largest = bytes;
    }
    if (cold_bytes > model) cold_bytes = model;
    return cold_bytes > largest ? cold_bytes : largest;
}

// What it is filled with: scales of about 6e-4 as half floats, small codes: nothing overflows, nothing is denormal.
static const int arena_byte = 0x11;

static enum atsi_status make_cpu_arena(struct atsi_bench_side *side, const struct atsi_plan *plan,
                                       struct atsi_error *err) {
    void *memory;
    side->arena_bytes = atsi_aligned(arena_bytes(plan, cpu_cold_bytes()));
    if (posix_memalign(&memory, SMALL_PAGE_BYTES, side->arena_bytes))
        return atsi_fail(err, ATSI_FAILED, "no memory to profile with");
    side->arena = memory;
    madvise(memory, side->arena_bytes, MADV_NOHUGEPAGE); // as a mapped plan file, but where a tmpfs gives large ones
    memset(memory, arena_byte, side->arena_bytes);
    return ATSI_OK;
}

static enum atsi_status make_gpu_arena(struct atsi_bench_side *side, const struct atsi_plan *plan,
                                       struct atsi_error *err) {
    const struct atsi_device_ops *ops = side->device->ops;
    void *memory;
    side->arena_bytes = atsi_aligned(arena_bytes(plan, gpu_cold_bytes));
    ATSI_TRY(ops->alloc(side->device, side->arena_bytes, &memory, err));
    side->arena = memory;
    memset(side->staging, arena_byte, ATSI_BENCH_STAGING_BYTES);
    for (uint64_t done = 0; done < side->arena_bytes; done += ATSI_BENCH_STAGING_BYTES) {
        uint64_t left = side->arena_bytes - done, n = left < ATSI_BENCH_STAGING_BYTES ? left : ATSI_BENCH_STAGING_BYTES;
        ATSI_TRY(ops->copy_to_device(side->stream, side->arena + done, side->staging, n, err));
    }
    return ops->stream_sync(side->stream, err);
}

// The next `bytes` of the arena, from its start again where they do not fit any more.
static void *take_cold(struct atsi_bench_side *side, uint64_t bytes) {
    if (side->arena_used + bytes > side->arena_bytes) side->arena_used = 0;
    void *at = side->arena + side->arena_used;
    side->arena_used += atsi_aligned(bytes);
    return at;
}

enum atsi_status atsi_bench_open_cpu(const struct atsi_plan *plan, int n_threads, struct atsi_bench_side *side,
                                     struct atsi_error *err) {
    const struct atsi_plan_limits *l = &plan->limits;
    memset(side, 0, sizeof *side);
    ATSI_TRY(atsi_pool_create(n_threads, &side->pool, err));
    return atsi_cpu_create(NULL, &plan->program, l->chunk, l->n_outputs, l->n_ctx, atsi_pool_n_threads(side->pool),
                           &side->cpu, err);
}

enum atsi_status atsi_bench_open_gpu(const struct atsi_plan *plan, struct atsi_device *device,
                                     struct atsi_bench_side *side, struct atsi_error *err) {
    const struct atsi_plan_limits *l = &plan->limits;
    void *staging_dev;
    memset(side, 0, sizeof *side);
    side->backend = ATSI_GPU;
    side->device = device;
    ATSI_TRY(device->ops->stream_create(device, &side->stream, err));
    ATSI_TRY(device->ops->event_create(device, true, &side->from, err));
    ATSI_TRY(device->ops->event_create(device, true, &side->to, err));
    ATSI_TRY(device->ops->host_alloc(device, ATSI_BENCH_STAGING_BYTES, &side->staging, &staging_dev, err));
    return device->ops->prepare(device, &plan->program, l->chunk, l->n_outputs, l->n_ctx, err);
}

enum atsi_status atsi_bench_map_weights(struct atsi_bench_side *side, const struct atsi_plan *plan,
                                        struct atsi_error *err) {
    uint64_t bytes = atsi_aligned(arena_bytes(plan, gpu_cold_bytes));
    void *dev;
    ATSI_TRY(side->device->ops->host_alloc(side->device, bytes, &side->mapped, &dev, err));
    memset(side->mapped, arena_byte, bytes);
    side->arena = dev;
    side->arena_bytes = bytes;
    return ATSI_OK;
}

void atsi_bench_close(struct atsi_bench_side *side) {
    atsi_pool_free(side->pool);
    atsi_cpu_free(side->cpu);
    if (!side->device) free(side->arena);
    if (side->device) {
        const struct atsi_device_ops *ops = side->device->ops;
        if (side->stream) ops->stream_sync(side->stream, NULL);
        if (side->arena && !side->mapped) ops->free(side->device, side->arena);
        if (side->mapped) ops->host_free(side->device, side->mapped);
        if (side->staging) ops->host_free(side->device, side->staging);
        if (side->from) ops->event_destroy(side->from);
        if (side->to) ops->event_destroy(side->to);
        if (side->stream) ops->stream_destroy(side->stream);
    }
    memset(side, 0, sizeof *side);
}

// ---- memory -------------------------------------------------------------------------------------------------------

// Operands of one operation.
struct bench {
    struct atsi_bench_side *side;
    const struct atsi_plan *plan;
    const struct atsi_op *op; // the first
    uint32_t n_ops;           // in a row
    void *blocks[MAX_BLOCKS];
    int n_blocks;
    struct atsi_round round;         // host copy
    struct atsi_round_ref round_ref; // on the side
    struct atsi_op_call calls[MAX_CALLS];
    int n_calls;
    const struct atsi_bench_part *part; // NULL: whole operations
    struct atsi_op_call narrowed[MAX_CALLS];
    struct atsi_call_part narrowed_parts[MAX_CALLS];
};

// Writes the elements [first, first + n) of what a block is filled with to `at`.
typedef void fill_block(void *at, uint64_t first, uint64_t n, const void *argument);

static void fill_floats(void *at, uint64_t first, uint64_t n, const void *argument) {
    (void)argument;
    for (uint64_t i = 0; i < n; i++) ((float *)at)[i] = 1 + 0.01f * (float)((first + i) * 37 % 100);
}

// Ids below *argument (at least 1), different ones for neighbours.
static void fill_ids(void *at, uint64_t first, uint64_t n, const void *argument) {
    uint32_t limit = *(const uint32_t *)argument;
    for (uint64_t i = 0; i < n; i++) ((int32_t *)at)[i] = (int32_t)(limit ? (first + i) % limit : 0);
}

static void fill_round(void *at, uint64_t first, uint64_t n, const void *argument) {
    memcpy(at, (const int32_t *)argument + first, n * 4);
}

static enum atsi_status get_block(struct bench *b, uint64_t bytes, void **block, struct atsi_error *err) {
    if (b->n_blocks == MAX_BLOCKS)
        return atsi_fail(err, ATSI_FAILED, "profiling %s: too many operands", atsi_op_name(b->op->kind));
    if (b->side->device)
        ATSI_TRY(b->side->device->ops->alloc(b->side->device, bytes, block, err));
    else if (posix_memalign(block, ATSI_ALIGNMENT, bytes))
        return atsi_fail(err, ATSI_FAILED, "no memory to profile %s", atsi_op_name(b->op->kind));
    b->blocks[b->n_blocks++] = *block;
    return ATSI_OK;
}

// A block of n_words 4-byte elements; what it starts with is `skip` elements into the pattern.
static enum atsi_status make_block(struct bench *b, uint64_t n_words, fill_block *fill, uint64_t skip,
                                   const void *argument, void **block, struct atsi_error *err) {
    const struct atsi_bench_side *s = b->side;
    uint64_t piece = ATSI_BENCH_STAGING_BYTES / 4;
    ATSI_TRY(get_block(b, n_words * 4, block, err));
    if (!s->device) {
        fill(*block, skip, n_words, argument);
        return ATSI_OK;
    }
    for (uint64_t done = 0; done < n_words; done += piece) {
        uint64_t n = n_words - done < piece ? n_words - done : piece;
        fill(s->staging, skip + done, n, argument);
        ATSI_TRY(s->device->ops->copy_to_device(s->stream, (char *)*block + done * 4, s->staging, n * 4, err));
        ATSI_TRY(s->device->ops->stream_sync(s->stream, err));
    }
    return ATSI_OK;
}

static void free_blocks(struct bench *b) {
    for (int i = 0; i < b->n_blocks; i++) {
        if (b->side->device)
            b->side->device->ops->free(b->side->device, b->blocks[i]);
        else
            free(b->blocks[i]);
    }
}

// ---- operands -----------------------------------------------------------------------------------------------------

static enum atsi_status make_round(struct bench *b, uint32_t n_tokens, struct atsi_error *err) {
    uint32_t middle = b->plan->limits.n_ctx / 2, half = n_tokens / 2;
    uint32_t n_vocab = b->plan->program.n_vocab ? b->plan->program.n_vocab : 1, n_rows = n_tokens;
    void *round, *ids, *rows;
    b->round = (struct atsi_round){
        .n_tokens = (int32_t)n_tokens, .n_outputs = 1, .first_pos = (int32_t)(middle > half ? middle - half : 0)};
    ATSI_TRY(make_block(b, sizeof b->round / 4, fill_round, 0, &b->round, &round, err));
    ATSI_TRY(make_block(b, n_tokens, fill_ids, 0, &n_vocab, &ids, err));
    ATSI_TRY(make_block(b, 1, fill_ids, 0, &n_rows, &rows, err));
    b->round_ref = (struct atsi_round_ref){.round = round, .token_ids = ids, .output_rows = rows};
    return ATSI_OK;
}

// Rows of a view; a buffer that stands twice among the operands is one block.
static enum atsi_status make_rows(struct bench *b, struct atsi_op_call *call, const struct atsi_view *v, int call_index,
                                  struct atsi_rows_ref *out, void **of_buffer, struct atsi_error *err) {
    *out = (struct atsi_rows_ref){0};
    if (v->buffer == ATSI_NONE) return ATSI_OK;
    const struct atsi_buffer *buffer = &b->plan->program.buffers[v->buffer];
    uint64_t rows = buffer->rows == ATSI_ROWS_OUTPUTS ? 1 : (uint64_t)b->round.n_tokens;
    uint32_t n_experts = call->op->kind == ATSI_OP_EXPERTS ? call->op->u.experts.n_experts : 1;
    if (!of_buffer[v->buffer]) {
        uint64_t skip = buffer->is_int ? (uint64_t)call_index * buffer->width : 0;
        ATSI_TRY(make_block(b, rows * buffer->width, buffer->is_int ? fill_ids : fill_floats, skip, &n_experts,
                            &of_buffer[v->buffer], err));
    }
    *out = (struct atsi_rows_ref){(char *)of_buffer[v->buffer] + (uint64_t)v->offset * 4, buffer->width, v->width};
    return ATSI_OK;
}

static enum atsi_status make_views(struct bench *b, struct atsi_op_call *call, int call_index, void **of_buffer,
                                   struct atsi_error *err) {
    for (int i = 0; i < ATSI_OP_MAX_IN; i++)
        ATSI_TRY(make_rows(b, call, &call->op->in[i], call_index, &call->in[i], of_buffer, err));
    for (int i = 0; i < ATSI_OP_MAX_OUT; i++)
        ATSI_TRY(make_rows(b, call, &call->op->out[i], call_index, &call->out[i], of_buffer, err));
    return ATSI_OK;
}

static void place_tensors(struct bench *b, struct atsi_op_call *call) {
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++) {
        if (call->op->tensor[i] == ATSI_NONE) continue;
        const struct atsi_tensor *t = &b->plan->program.tensors[call->op->tensor[i]];
        call->tensor[i] = (struct atsi_tensor_ref){take_cold(b->side, t->size_bytes), t};
    }
}

static void place_state(struct bench *b, struct atsi_op_call *call) {
    const struct atsi_plan_limits *l = &b->plan->limits;
    if (call->op->state == ATSI_NONE) return;
    const struct atsi_state *s = &b->plan->program.states[call->op->state];
    uint32_t capacity = atsi_state_capacity(s, l->n_ctx, l->chunk);
    uint64_t k_bytes = atsi_aligned(atsi_dtype_row_bytes(l->kv_type, s->k_dim) * s->n_heads * capacity);
    char *at = take_cold(b->side, state_bytes(b->plan, call->op->state));
    call->state = (struct atsi_state_ref){.info = s, .kv_type = l->kv_type, .capacity = capacity, .k = at};
    if (s->kind == ATSI_STATE_KV) call->state.v = at + k_bytes;
}

// Gives every call weights and states of its own; experts of one tensor are many already, so that it serves all calls of a pass.
static void place_cold(struct bench *b) {
    for (int i = 0; i < b->n_calls; i++) {
        struct atsi_op_call *call = &b->calls[i];
        if (i > 0 && b->op->kind == ATSI_OP_EXPERTS)
            memcpy(call->tensor, b->calls[0].tensor, sizeof call->tensor);
        else
            place_tensors(b, call);
        place_state(b, call);
    }
}

// The calls of a pass: those above, or the part that is asked for of each.
static const struct atsi_op_call *calls_of_pass(struct bench *b) {
    for (int i = 0; b->part && i < b->n_calls; i++) {
        b->narrowed[i] = b->calls[i];
        atsi_narrow_call(&b->narrowed[i], 0, b->part->n_columns, &b->narrowed_parts[i]);
    }
    return b->part ? b->narrowed : b->calls;
}

// How often the operation is made in a pass: until the calls have gone round the arena, or all experts have had their turn. The CPU
// takes fewer, since its next pass goes on where this one ended.
static int count_calls(const struct bench *b, uint32_t n_tokens) {
    uint64_t bytes = operand_bytes(b->plan, b->op), most = b->side->device ? MAX_CALLS : CPU_CALLS, n = 8;
    if (n_tokens > 1) return 1;
    if (b->op->kind == ATSI_OP_EXPERTS)
        n = b->op->u.experts.n_experts / b->op->u.experts.n_used;
    else if (bytes)
        n = b->side->arena_bytes / bytes;
    return n < 1 ? 1 : n > most ? (int)most : (int)n;
}

// Rounds of a row of operations, each of which has others' results for operands as in the program; as many as there is room for.
static enum atsi_status make_rows_of_calls(struct bench *b, struct atsi_error *err) {
    void *of_buffer[ATSI_MAX_BUFFERS] = {0};
    const struct atsi_program *p = &b->plan->program;
    for (uint32_t i = 0; i < b->n_ops; i++) {
        struct atsi_op_call *call = &b->calls[i];
        *call = (struct atsi_op_call){.op = b->op + i, .round = b->round_ref};
        ATSI_TRY(make_views(b, call, 0, of_buffer, err));
        call->outputs_domain = p->buffers[call->op->out[0].buffer].rows == ATSI_ROWS_OUTPUTS;
    }
    b->n_calls = MAX_CALLS / (int)b->n_ops * (int)b->n_ops;
    for (int i = (int)b->n_ops; i < b->n_calls; i++) b->calls[i] = b->calls[i - (int)b->n_ops];
    place_cold(b);
    return ATSI_OK;
}

static enum atsi_status make_calls(struct bench *b, struct atsi_error *err) {
    struct atsi_op_call first = {.op = b->op};
    void *of_buffer[ATSI_MAX_BUFFERS] = {0};
    ATSI_TRY(make_views(b, &first, 0, of_buffer, err));
    first.outputs_domain = b->plan->program.buffers[b->op->out[0].buffer].rows == ATSI_ROWS_OUTPUTS;
    first.round = b->round_ref;
    for (int i = 0; i < b->n_calls; i++) {
        void *other_ids[ATSI_MAX_BUFFERS] = {0};
        b->calls[i] = first;
        if (i > 0 && b->op->kind == ATSI_OP_EXPERTS)
            ATSI_TRY(make_rows(b, &b->calls[i], &b->op->in[1], i, &b->calls[i].in[1], other_ids, err));
    }
    place_cold(b);
    return ATSI_OK;
}

// ---- timing -------------------------------------------------------------------------------------------------------

double atsi_median(double *samples, int n, double *spread) {
    atsi_sort_doubles(samples, (size_t)n);
    double median = n % 2 ? samples[n / 2] : 0.5 * (samples[n / 2 - 1] + samples[n / 2]);
    *spread = median > 0 ? (samples[n - 1] - samples[0]) / median : 0;
    return median;
}

static enum atsi_status launch_all(struct bench *b, struct atsi_error *err) {
    const struct atsi_op_call *calls = calls_of_pass(b);
    for (int i = 0; i < b->n_calls; i++)
        ATSI_TRY(b->side->device->ops->launch(b->side->stream, &calls[i], &b->round, err));
    return ATSI_OK;
}

// One pass over all calls; *us of the pass. A graph replays them where the device has graphs, as the runtime does in decode.
static enum atsi_status run_on_device(struct bench *b, void *graph, double *us, struct atsi_error *err) {
    const struct atsi_device_ops *ops = b->side->device->ops;
    float elapsed;
    ATSI_TRY(ops->event_record(b->side->from, b->side->stream, err));
    if (graph)
        ATSI_TRY(ops->graph_launch(b->side->stream, graph, err));
    else
        ATSI_TRY(launch_all(b, err));
    ATSI_TRY(ops->event_record(b->side->to, b->side->stream, err));
    ATSI_TRY(ops->event_sync(b->side->to, err));
    ATSI_TRY(ops->event_elapsed_us(b->side->from, b->side->to, &elapsed, err));
    *us = elapsed;
    return ATSI_OK;
}

// Times lists of n calls; the caller waits before each list as it does for a device, busily.
static double run_lists(const struct bench *b, const struct atsi_op_call *calls, int n, double wait_us) {
    double us = 0;
    for (int i = 0; i < b->n_calls; i += n) {
        double start = atsi_clock_us(), begin = start + wait_us;
        while (start < begin) start = atsi_clock_us();
        atsi_cpu_run(b->side->cpu, b->side->pool, &calls[i], n);
        us += atsi_clock_us() - start;
    }
    return us;
}

static enum atsi_status run_once(struct bench *b, void *graph, double *us, struct atsi_error *err) {
    if (b->side->device) return run_on_device(b, graph, us, err);
    place_cold(b);
    const struct atsi_op_call *calls = calls_of_pass(b);
    bool alone = b->part && b->part->alone;
    *us = run_lists(b, calls, alone ? 1 : b->n_calls, alone ? pause_us : 0);
    return ATSI_OK;
}

static enum atsi_status sample(struct bench *b, void *graph, double *us, double *spread, struct atsi_error *err) {
    double samples[MAX_SAMPLES], spent = 0, warm_up, most_us = b->part ? sampling_us / 3 : sampling_us;
    int n = 0;
    ATSI_TRY(run_once(b, graph, &warm_up, err));
    while (n < MIN_SAMPLES || (n < MAX_SAMPLES && spent < most_us)) {
        ATSI_TRY(run_once(b, graph, &samples[n], err));
        samples[n] /= b->n_calls;
        spent += samples[n++] * b->n_calls;
    }
    *us = atsi_median(samples, n, spread);
    return ATSI_OK;
}

static enum atsi_status sample_with_graph(struct bench *b, double *us, double *spread, struct atsi_error *err) {
    const struct atsi_device_ops *ops = b->side->device ? b->side->device->ops : NULL;
    void *graph = NULL;
    if (ops && ops->capture_begin) {
        ATSI_TRY(ops->capture_begin(b->side->stream, err));
        ATSI_TRY(launch_all(b, err));
        ATSI_TRY(ops->capture_end(b->side->stream, &graph, err));
    }
    enum atsi_status status = sample(b, graph, us, spread, err);
    if (graph) ops->graph_destroy(b->side->device, graph);
    return status;
}

static enum atsi_status run_bench(struct bench *b, uint32_t n_tokens, double *us, double *spread,
                                  struct atsi_error *err) {
    ATSI_TRY(make_round(b, n_tokens, err));
    b->n_calls = count_calls(b, n_tokens);
    ATSI_TRY(b->n_ops > 1 ? make_rows_of_calls(b, err) : make_calls(b, err));
    ATSI_TRY(sample_with_graph(b, us, spread, err));
    *us *= b->n_ops;
    return ATSI_OK;
}

// What is timed, on a side that is open for the plan.
struct subject {
    uint32_t first_op, n_ops, n_tokens;
    const struct atsi_bench_part *part; // NULL: whole operations
};

static enum atsi_status bench(struct atsi_bench_side *side, const struct atsi_plan *plan, const struct subject *what,
                              double *us, double *spread, struct atsi_error *err) {
    if (!side->arena) ATSI_TRY(side->device ? make_gpu_arena(side, plan, err) : make_cpu_arena(side, plan, err));
    struct bench *b = calloc(1, sizeof *b);
    if (!b) return atsi_fail(err, ATSI_FAILED, "out of memory while profiling");
    b->side = side;
    b->plan = plan;
    b->op = &plan->program.ops[what->first_op];
    b->n_ops = what->n_ops;
    b->part = what->part;
    enum atsi_status status = run_bench(b, what->n_tokens, us, spread, err);
    if (side->device) side->device->ops->stream_sync(side->stream, NULL);
    free_blocks(b);
    free(b);
    return status;
}

enum atsi_status atsi_bench_op(struct atsi_bench_side *side, const struct atsi_plan *plan, uint32_t i_op,
                               uint32_t n_tokens, double *us, double *spread, struct atsi_error *err) {
    return bench(side, plan, &(struct subject){i_op, 1, n_tokens, NULL}, us, spread, err);
}

enum atsi_status atsi_bench_part(struct atsi_bench_side *side, const struct atsi_plan *plan,
                                 const struct atsi_bench_part *part, double *us, struct atsi_error *err) {
    double spread;
    return bench(side, plan, &(struct subject){part->i_op, 1, 1, part}, us, &spread, err);
}

enum atsi_status atsi_bench_row(struct atsi_bench_side *side, const struct atsi_plan *plan, uint32_t first_op,
                                uint32_t n_ops, double *us, struct atsi_error *err) {
    double spread;
    return bench(side, plan, &(struct subject){first_op, n_ops, 1, NULL}, us, &spread, err);
}
