#include "planner/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/base/clock.h"
#include "planner/bench.h"
#include "planner/chunk.h"
#include "planner/cost.h"
#include "planner/profile_fit.h"

static const double noisy = 0.08;          // spread over which a sample is repeated, then counted as noisy
static const double most_flops_cpu = 2e10; // a chunk with more is timed with fewer tokens on the CPU
enum {
    TRIES = 2
};

// ---- the machine --------------------------------------------------------------------------------------------------

static void read_cpu_name(char *name, size_t size) {
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, size, "unknown CPU");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = 0;
        snprintf(name, size, "%s", colon);
        break;
    }
    if (file) fclose(file);
}

// The kernel module's version ("580.65.06"), which figures depend on; "unknown" where the driver does not tell.
static void read_driver_version(char *version, size_t size) {
    char line[512], *rest = line;
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    snprintf(version, size, "unknown");
    if (!file) return;
    if (!fgets(line, sizeof line, file)) line[0] = 0;
    fclose(file);
    for (char *word; (word = strsep(&rest, " \t\n"));)
        if (strchr(word, '.') && strspn(word, "0123456789.") == strlen(word)) {
            snprintf(version, size, "%s", word);
            return;
        }
}

enum atsi_status atsi_measure_identify(const struct atsi_measure_options *o, struct atsi_device_profile *p,
                                       struct atsi_error *err) {
    memset(p, 0, sizeof *p);
    read_cpu_name(p->cpu_name, sizeof p->cpu_name);
    p->n_threads = (uint32_t)(o->n_threads ? o->n_threads : atsi_pool_default_threads());
    p->host_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    snprintf(p->name, sizeof p->name, "%.100s, %u threads", p->cpu_name, p->n_threads);
    if (!o->device) return ATSI_OK;
    struct atsi_device_info info;
    ATSI_TRY(o->device->ops->info(o->device, &info, err));
    p->has_gpu = true;
    p->gpu_bytes = info.total_bytes;
    p->n_copy_engines = info.n_copy_engines > 0 ? (uint32_t)info.n_copy_engines : 1;
    snprintf(p->gpu_name, sizeof p->gpu_name, "%s", info.name);
    read_driver_version(p->driver, sizeof p->driver);
    snprintf(p->name, sizeof p->name, "%.100s, %.80s, %u threads", info.name, p->cpu_name, p->n_threads);
    return ATSI_OK;
}

// ---- what to time -------------------------------------------------------------------------------------------------

struct item {
    uint32_t i_op, n_tokens;
    enum atsi_phase phase;
    struct atsi_work work;
};

struct items {
    struct item *list; // room for every operation in decode and at two chunks
    uint32_t n;
};

static bool same_work(const struct atsi_plan *plan, const struct item *a, const struct item *b) {
    return plan->program.ops[a->i_op].kind == plan->program.ops[b->i_op].kind && a->phase == b->phase &&
           a->work.dtype == b->work.dtype && a->work.bytes == b->work.bytes && a->work.flops == b->work.flops;
}

// Tokens to time a chunk's operation with: all, or on the CPU as many as it can do in a tenth of a second or so.
static uint32_t probe_tokens(const struct atsi_plan *plan, const struct atsi_op *op, enum atsi_backend side) {
    double flops = atsi_work_of_op(plan, op, ATSI_PREFILL).flops;
    uint32_t chunk = plan->limits.chunk;
    if (side == ATSI_GPU || flops <= most_flops_cpu) return chunk;
    uint32_t n = (uint32_t)(chunk * most_flops_cpu / flops);
    return n < 16 ? 16 : n;
}

static struct item item_of(const struct atsi_plan *plan, uint32_t i_op, enum atsi_phase phase, uint32_t n_tokens) {
    struct atsi_plan probed = *plan; // the same program in chunks of this size
    probed.limits.chunk = n_tokens;
    return (struct item){.i_op = i_op,
                         .phase = phase,
                         .n_tokens = n_tokens,
                         .work = atsi_work_of_op(&probed, &plan->program.ops[i_op], phase)};
}

// Adds the distinct operations that neither the profile has a point of nor `items` holds. n_tokens 0: as many as probe_tokens says.
static void list_phase(const struct atsi_plan *plan, const struct atsi_device_profile *profile, enum atsi_backend side,
                       enum atsi_phase phase, uint32_t n_tokens, struct items *items) {
    for (uint32_t i = 0; i < plan->program.n_ops; i++) {
        const struct atsi_op *op = &plan->program.ops[i];
        struct item item = item_of(plan, i, phase, n_tokens ? n_tokens : probe_tokens(plan, op, side));
        bool known =
            atsi_profile_has_point(profile, side, op->kind, item.work.dtype, phase, item.work.bytes, item.work.flops);
        for (uint32_t k = 0; k < items->n && !known; k++) known = same_work(plan, &items->list[k], &item);
        bool runs = side == ATSI_CPU || atsi_op_runs_on_gpu(&plan->program, op);
        if (runs && !known) items->list[items->n++] = item;
    }
}

// What is needed most comes first, since time may run out.
static void list_items(const struct atsi_plan *plan, const struct atsi_device_profile *profile, enum atsi_backend side,
                       uint32_t largest_chunk, struct items *items) {
    list_phase(plan, profile, side, ATSI_DECODE, 1, items);
    list_phase(plan, profile, side, ATSI_PREFILL, 0, items);
    if (side == ATSI_GPU && largest_chunk > plan->limits.chunk)
        list_phase(plan, profile, side, ATSI_PREFILL, largest_chunk, items);
}

// ---- timing it ----------------------------------------------------------------------------------------------------

struct measuring {
    const struct atsi_plan *plan;
    struct atsi_plan largest; // the same with the largest chunk that is timed on the device
    const struct atsi_measure_options *options;
    struct atsi_device_profile *profile;
    struct atsi_measure_result *result;
    double start_us;
    uint64_t done, total;
};

static bool has_time(const struct measuring *m) {
    return atsi_clock_us() - m->start_us < m->options->seconds_max * 1e6;
}

// What any part of the operation takes, where rounds divide it.
static enum atsi_status time_parts(struct measuring *m, struct atsi_bench_side *side, uint32_t i_op,
                                   struct atsi_profile_point *point, struct atsi_error *err) {
    const struct atsi_program *p = &m->plan->program;
    const struct atsi_unit *unit = &p->units[atsi_program_unit_of(p, i_op)];
    if (!atsi_op_is_divisible(p, &p->ops[i_op]) || !atsi_unit_is_promotable(unit)) return ATSI_OK;
    const struct atsi_plan *plan = side->backend == ATSI_GPU ? &m->largest : m->plan;
    ATSI_TRY(atsi_measure_fixed(side, plan, i_op, &point->fixed_us, &point->has_fixed, err));
    point->fixed_us = fmin(point->fixed_us, point->us);
    return ATSI_OK;
}

// The calmest of a few tries.
static enum atsi_status time_item(struct measuring *m, struct atsi_bench_side *side, const struct item *item,
                                  struct atsi_error *err) {
    struct atsi_profile_point best = {.bytes = item->work.bytes, .flops = item->work.flops, .spread = 1e9};
    for (int i = 0; i < TRIES && best.spread > noisy; i++) {
        double us, spread;
        ATSI_TRY(atsi_bench_op(side, side->backend == ATSI_GPU ? &m->largest : m->plan, item->i_op, item->n_tokens, &us,
                               &spread, err));
        if (spread < best.spread) {
            best.us = us;
            best.spread = spread;
        }
    }
    m->result->n_measured++;
    m->result->n_noisy += best.spread > noisy;
    if (item->phase == ATSI_DECODE) ATSI_TRY(time_parts(m, side, item->i_op, &best, err));
    return atsi_profile_add_point(m->profile, side->backend, m->plan->program.ops[item->i_op].kind, item->work.dtype,
                                  item->phase, best, err);
}

static enum atsi_status time_items(struct measuring *m, struct atsi_bench_side *side, const struct items *items,
                                   struct atsi_error *err) {
    for (uint32_t i = 0; i < items->n; i++) {
        if (m->options->stop && *m->options->stop)
            return atsi_fail(err, ATSI_INTERRUPTED, "interrupted while profiling");
        if (has_time(m))
            ATSI_TRY(time_item(m, side, &items->list[i], err));
        else
            m->result->n_skipped++;
        if (m->options->progress) m->options->progress(m->options->user, ++m->done, m->total);
    }
    return ATSI_OK;
}

// The scratch memory that the device was prepared with is part of a plan's own budget, not of the driver's share.
static enum atsi_status measure_link_once(struct measuring *m, struct atsi_error *err) {
    const struct atsi_plan_limits *l = &m->largest.limits;
    uint64_t scratch = m->options->device->ops->scratch_bytes(&m->plan->program, l->chunk, l->n_outputs, l->n_ctx);
    ATSI_TRY(atsi_measure_link(m->options->device, m->profile, err));
    m->profile->context_bytes -= scratch < m->profile->context_bytes ? scratch : m->profile->context_bytes;
    return ATSI_OK;
}

static enum atsi_status measure_gpu(struct measuring *m, const struct items *items, struct atsi_error *err) {
    struct atsi_bench_side side;
    if (items->n == 0) return ATSI_OK;
    enum atsi_status status = atsi_bench_open_gpu(&m->largest, m->options->device, &side, err);
    if (status == ATSI_OK && m->profile->to_device.bytes_per_us <= 0) status = measure_link_once(m, err);
    if (status == ATSI_OK) status = time_items(m, &side, items, err);
    if (status == ATSI_OK && m->profile->gpu_joined_us <= 0 && has_time(m))
        status = atsi_measure_joined(&side, &m->largest, m->profile, &m->profile->gpu_joined_us, err);
    atsi_bench_close(&side);
    return status;
}

// The link's figures come with the default, which stays where there was no time for more.
static bool lacks_contention(const struct measuring *m) {
    const struct atsi_contention none = ATSI_CONTENTION_DEFAULT, *c = &m->profile->contention;
    return m->options->device && c->cpu_beside_link == none.cpu_beside_link && c->link_in_place == none.link_in_place &&
           c->link_beside_cpu == none.link_beside_cpu;
}

static enum atsi_status measure_cpu(struct measuring *m, const struct items *items, struct atsi_error *err) {
    struct atsi_bench_side side;
    bool contends = lacks_contention(m);
    if (items->n == 0 && !contends) return ATSI_OK;
    enum atsi_status status = atsi_bench_open_cpu(m->plan, m->options->n_threads, &side, err);
    if (status == ATSI_OK) status = time_items(m, &side, items, err);
    if (status == ATSI_OK && m->profile->cpu_start_us <= 0 && has_time(m))
        status = atsi_measure_start(&side, m->plan, &m->profile->cpu_start_us, err);
    if (status == ATSI_OK && contends && has_time(m))
        status = atsi_measure_contention(m->plan, &side, m->options->device, m->profile, err);
    atsi_bench_close(&side);
    return status;
}

static enum atsi_status measure_sides(struct measuring *m, struct items *cpu, struct items *gpu,
                                      struct atsi_error *err) {
    list_items(m->plan, m->profile, ATSI_CPU, m->largest.limits.chunk, cpu);
    if (m->options->device) list_items(m->plan, m->profile, ATSI_GPU, m->largest.limits.chunk, gpu);
    m->total = cpu->n + gpu->n;
    ATSI_TRY(measure_gpu(m, gpu, err));
    return measure_cpu(m, cpu, err);
}

enum atsi_status atsi_measure(const struct atsi_plan *plan, const struct atsi_measure_options *options,
                              struct atsi_device_profile *profile, struct atsi_measure_result *result,
                              struct atsi_error *err) {
    enum {
        LISTS = 3
    };
    struct measuring m = {.plan = plan,
                          .largest = *plan,
                          .options = options,
                          .profile = profile,
                          .result = result,
                          .start_us = atsi_clock_us()};
    struct atsi_chunks chunks = atsi_chunks_of(plan);
    if (options->all_chunks) m.largest.limits.chunk = chunks.sizes[chunks.n - 1];
    memset(result, 0, sizeof *result);
    struct items cpu = {calloc(LISTS * plan->program.n_ops, sizeof *cpu.list), 0},
                 gpu = {calloc(LISTS * plan->program.n_ops, sizeof *gpu.list), 0};
    enum atsi_status status = cpu.list && gpu.list ? measure_sides(&m, &cpu, &gpu, err)
                                                   : atsi_fail(err, ATSI_FAILED, "out of memory while profiling");
    free(cpu.list);
    free(gpu.list);
    return status == ATSI_OK ? atsi_profile_fit(profile, err) : status;
}
