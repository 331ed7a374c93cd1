// Quality and time of the scheduler on rounds of 450 units (docs/scheduling.md quotes this).
//
//     bench_schedule [seconds]      annealing time a round for the reference, default 1
//
// 144 rounds: 7 tensors a layer of like or of Llama-like sizes, transfers of 1, 1.5, 2 and 3 times the CPU time, a
// region of 2, 4 and 6 tensors, none, 30 % or 60 % of the units resident, times equal in all layers or spread by 5 %.
// The reference is the best of this scheduler's own search with 32 times the cells in eight shapes, an annealing of
// the result, and every policy.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/sort.h"
#include "runtime/schedule/policies.h"
#include "runtime/schedule/schedule.h"
#include "runtime/schedule/search.h"

enum {
    N = 450,
    N_ROUNDS = 144,
    N_RUNS = 5,
    LONG_CELLS = 2048
};

static struct atsi_schedule_unit units[N];

static double uniform(uint64_t *rng) {
    *rng = *rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*rng >> 11) / 9007199254740992.0;
}

// Processor time of this thread: other programs on the machine must not count.
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct shape {
    double ratio, resident, spread;
    int region, llama;
};

static struct shape shape_of(int k) {
    static const double ratios[] = {1, 1.5, 2, 3}, residents[] = {0, 0.3, 0.6};
    static const int regions[] = {2, 4, 6};
    return (struct shape){.region = regions[k % 3],
                          .resident = residents[k / 3 % 3],
                          .ratio = ratios[k / 9 % 4],
                          .llama = k / 36 % 2,
                          .spread = k / 72 * 0.05};
}

// Residency by whole layers, by role or at random, in turn.
static bool is_resident(const struct shape *shape, size_t i, int way, uint64_t *rng) {
    double draw = uniform(rng);
    if (way == 0) return (double)i < shape->resident * N;
    if (way == 1) return (double)(i % 7) < 7 * shape->resident - 0.3;
    return draw < shape->resident;
}

static struct atsi_schedule_instance make_round(int k) {
    static const double llama[7] = {14.4, 2.9, 2.9, 14.4, 50, 50, 60};
    struct shape shape = shape_of(k);
    uint64_t rng = (uint64_t)k * 7919 + 13;
    double mib[7], speedup[7], switch_us = 10 + 40 * uniform(&rng), mean = 0;
    for (int r = 0; r < 7; r++) {
        mib[r] = shape.llama ? llama[r] * (0.8 + 0.4 * uniform(&rng)) : 20 * (0.5 + uniform(&rng));
        speedup[r] = 0.06 + 0.12 * uniform(&rng);
        mean += mib[r] / 7;
    }
    for (size_t i = 0; i < N; i++) {
        double size = mib[i % 7] * (1 + shape.spread * (2 * uniform(&rng) - 1)), cpu_us = 26 * size;
        units[i] = (struct atsi_schedule_unit){.size_bytes = (uint64_t)(size * 1048576),
                                               .t_cpu_us = 8 + cpu_us,
                                               .t_gpu_us = 4 + cpu_us * speedup[i % 7],
                                               .transfer_us = 5 + cpu_us * shape.ratio,
                                               .switch_us = switch_us,
                                               .after = ATSI_AFTER_START,
                                               .home = is_resident(&shape, i, k % 5 % 3, &rng) ? ATSI_GPU : ATSI_CPU};
    }
    return (struct atsi_schedule_instance){(uint64_t)(shape.region * mean * 1048576), N, units};
}

static double time_of(const struct atsi_schedule_instance *inst, const uint8_t *sides) {
    static double start[N], end[N];
    struct atsi_schedule_timing timing = {.start_us = start, .end_us = end};
    return atsi_schedule_time(inst, sides, &timing);
}

static double anneal(const struct atsi_schedule_instance *inst, uint8_t *sides, double seconds) {
    static uint8_t trial[N];
    double current = time_of(inst, sides), best = current, begin = now(), hottest = 2e-4 * current, done = 0;
    uint64_t rng = 1;
    for (long k = 0; done < 1; k++) {
        if (k % 256 == 0) done = (now() - begin) / seconds;
        memcpy(trial, sides, N);
        size_t at = (size_t)(uniform(&rng) * (N - 8)), n_flips = 1 + (size_t)(3 * uniform(&rng));
        for (size_t f = 0; f < n_flips; f++) {
            size_t i = at + (size_t)(uniform(&rng) * 8);
            if (units[i].home == ATSI_CPU && units[i].size_bytes <= inst->temp_bytes) trial[i] ^= 1;
        }
        double us = time_of(inst, trial), heat = hottest * pow(1e-3, done);
        if (us > current && uniform(&rng) >= exp((current - us) / heat)) continue;
        current = us;
        memcpy(sides, trial, N);
        if (us < best) best = us;
    }
    return best;
}

static double long_search(struct search *search, const struct atsi_schedule_instance *inst, const uint8_t *known,
                          double seconds) {
    static const size_t recent[] = {1, 4, 6, 9};
    static uint8_t sides[N], best_sides[N];
    double clock_weight, best = time_of(inst, known);
    memcpy(best_sides, known, N);
    lower_bound(inst, &clock_weight);
    for (int k = 0; k < 8; k++) {
        size_t n_recent = recent[k / 2];
        struct search_effort effort = {LONG_CELLS >> n_recent, n_recent, k % 2 ? 1 : clock_weight, INFINITY};
        if (!search_policy(search, inst, &effort, sides) || time_of(inst, sides) >= best) continue;
        best = time_of(inst, sides);
        memcpy(best_sides, sides, N);
    }
    return fmin(best, anneal(inst, best_sides, seconds));
}

struct figures {
    double gap[N_ROUNDS], bound_gap[N_ROUNDS], ms[N_ROUNDS], none[N_ROUNDS], paper[N_ROUNDS];
};

static void measure(struct atsi_scheduler *s, struct search *search, int k, double seconds, struct figures *f) {
    struct atsi_schedule_instance inst = make_round(k);
    struct atsi_schedule out;
    double total[3], best_s = INFINITY;
    for (int policy = 0; policy < 3; policy++) {
        for (int run = 0; run < (policy == ATSI_POLICY_FIFO ? N_RUNS : 1); run++) {
            double begin = now();
            if (atsi_scheduler_run(s, &inst, (enum atsi_schedule_policy)policy, NULL, &out, NULL) != ATSI_OK) exit(1);
            if (policy == ATSI_POLICY_FIFO) best_s = fmin(best_s, now() - begin);
        }
        total[policy] = out.total_us;
    }
    double reference = long_search(search, &inst, out.assignment, seconds);
    f->gap[k] = 100 * (out.total_us / reference - 1);
    f->bound_gap[k] = 100 * (out.total_us / out.lower_bound_us - 1);
    f->ms[k] = 1e3 * best_s;
    f->none[k] = total[ATSI_POLICY_NONE] / out.total_us;
    f->paper[k] = total[ATSI_POLICY_PAPER] / out.total_us;
}

static void print_row(const char *name, double *values) {
    atsi_sort_doubles(values, N_ROUNDS);
    double sum = 0;
    for (int k = 0; k < N_ROUNDS; k++) sum += values[k];
    printf("%-36s mean %7.3f  median %7.3f  90 %% %7.3f  worst %7.3f\n", name, sum / N_ROUNDS, values[N_ROUNDS / 2],
           values[N_ROUNDS * 9 / 10], values[N_ROUNDS - 1]);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    static struct figures f;
    struct atsi_scheduler *s = NULL;
    struct search *search = search_create(N, LONG_CELLS);
    if (!search || atsi_scheduler_create(N, &s, NULL) != ATSI_OK) return 1;
    for (int k = 0; k < N_ROUNDS; k++) measure(s, search, k, seconds, &f);
    print_row("% over the best known", f.gap);
    print_row("% over the lower bound", f.bound_gap);
    print_row("ms of processor time a decision", f.ms);
    print_row("none / fifo", f.none);
    print_row("paper / fifo", f.paper);
    atsi_scheduler_free(s);
    search_free(search);
    return 0;
}
