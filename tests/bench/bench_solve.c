// Certificates on model-shaped instances: how fast the DP is and what gap GLPK proves (docs/placement.md quotes this).
//
//     bench_solve [seconds]      time limit of one cross-check, default 60
//
// Unit lists follow the shapes of three models at the usual 4-bit mixes; times are modelled from bandwidths (a laptop:
// CPU 40 GB/s, GPU 300 GB/s, 25 us a switch) because what matters here is the structure: many equal layers, few sizes.
#include <stdio.h>
#include <stdlib.h>

#include "planner/solve/solve.h"

#define UNITS_MAX 1024
#define MIB       (1 << 20)

struct list {
    size_t n;
    struct atsi_solve_unit units[UNITS_MAX];
    uint64_t rng;
    double jitter; // relative spread of the times, 0: layers are exactly equal
};

static double uniform(struct list *list) {
    list->rng = list->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(list->rng >> 11) / 9007199254740992.0;
}

// A unit of `size` bytes of which `active` are read for one token.
static void add(struct list *list, double size, double active, bool is_expert) {
    double spread = 1 + list->jitter * (2 * uniform(list) - 1);
    list->units[list->n++] = (struct atsi_solve_unit){.size_bytes = (uint64_t)size,
                                                      .t_cpu_us = (8 + active / 40e3) * spread,
                                                      .t_gpu_us = (4 + active / 300e3) * spread,
                                                      .switch_us = 25 * spread,
                                                      .is_expert = is_expert};
}

static void add_matrix(struct list *list, double cols, double rows, double bits) {
    add(list, cols * rows * bits / 8, cols * rows * bits / 8, false);
}

static void add_experts(struct list *list, double cols, double rows, double bits, double n, double used) {
    add(list, cols * rows * bits / 8 * n, cols * rows * bits / 8 * used, true);
}

static const double Q4_K = 4.5, Q6_K = 6.5625, MXFP4 = 4.25, Q8_0 = 8.5;

// Q4_K_M gives half of the layers more bits in v and down.
static double mixed(int layer, int n_layers) {
    return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2 ? Q6_K : Q4_K;
}

static void add_attention(struct list *list, double width, double q_dim, double kv_dim, double q_bits, double v_bits) {
    add_matrix(list, width, q_dim, q_bits);
    add_matrix(list, width, kv_dim, q_bits);
    add_matrix(list, width, kv_dim, v_bits);
    add(list, 4096 * 2 * kv_dim * 2, 2048 * 2 * kv_dim * 2, false); // the cache of 4096 tokens, half full
    add_matrix(list, q_dim, width, q_bits);
}

static void make_qwen3_14b(struct list *list) {
    add(list, 5120.0 * 151936 * Q4_K / 8, 5120, false);
    for (int layer = 0; layer < 40; layer++) {
        double bits = mixed(layer, 40);
        add_attention(list, 5120, 5120, 1024, Q4_K, bits);
        add_matrix(list, 5120, 17408, Q4_K);
        add_matrix(list, 5120, 17408, Q4_K);
        add_matrix(list, 17408, 5120, bits);
    }
    add_matrix(list, 5120, 151936, Q6_K);
}

static void make_qwen3_30b_a3b(struct list *list) {
    add(list, 2048.0 * 151936 * Q4_K / 8, 2048, false);
    for (int layer = 0; layer < 48; layer++) {
        double bits = mixed(layer, 48);
        add_attention(list, 2048, 4096, 512, Q4_K, bits);
        add_experts(list, 2048, 768, Q4_K, 128, 8);
        add_experts(list, 2048, 768, Q4_K, 128, 8);
        add_experts(list, 768, 2048, bits, 128, 8);
    }
    add_matrix(list, 2048, 151936, Q6_K);
}

static void make_gpt_oss_120b(struct list *list) {
    add(list, 2880.0 * 201088 * Q8_0 / 8, 2880, false);
    for (int layer = 0; layer < 36; layer++) {
        add_attention(list, 2880, 4096, 512, Q8_0, Q8_0);
        for (int k = 0; k < 3; k++) add_experts(list, 2880, 2880, MXFP4, 128, 4);
    }
    add_matrix(list, 2880, 201088, Q8_0);
}

static void run(const char *name, void (*make)(struct list *), double jitter, int gib, double seconds, bool partition) {
    static struct list list, fixed;
    list.n = 0;
    list.rng = 1;
    list.jitter = jitter;
    make(&list);
    struct atsi_solve_instance inst = {(uint64_t)gib << 30, MIB, list.n, list.units};
    if (partition) {
        atsi_solve_partition(&inst, fixed.units);
        inst.units = fixed.units;
    }
    static uint8_t placement[UNITS_MAX];
    struct atsi_milp_options options = atsi_milp_defaults();
    options.seconds_max = seconds;
    struct atsi_solve_result r;
    struct atsi_error err = {0};
    if (atsi_solve(&inst, &options, placement, &r, &err) != ATSI_OK) {
        printf("%s: %s\n", name, err.text);
        return;
    }
    static const char *const words[] = {"optimal", "bounded", "skipped"};
    double lp_gap = r.milp.lp_bound_us / r.value.objective_us - 1;
    printf("%-15s %-9s %4.1f%% %3d GiB  n %4zu  dp %6.3f s  %-7s gap %8.5f%% (root %7.4f%%)  milp %6.2f s\n", name,
           partition ? "partition" : "none", 100 * jitter, gib, list.n, r.dp_seconds, words[r.milp.status], 100 * r.gap,
           100 * lp_gap, r.milp.seconds);
    fflush(stdout);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 60;
    static const int budgets[] = {2, 4, 6, 8, 12, 16, 24};
    static const struct {
        const char *name;
        void (*make)(struct list *);
    } models[] = {
        {"Qwen3-14B", make_qwen3_14b}, {"Qwen3-30B-A3B", make_qwen3_30b_a3b}, {"GPT-OSS-120B", make_gpt_oss_120b}};
    for (size_t m = 0; m < 3; m++)
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++)
            for (int k = 0; k < 2; k++) {
                run(models[m].name, models[m].make, k * 0.01, budgets[b], seconds, false);
                if (m > 0) run(models[m].name, models[m].make, k * 0.01, budgets[b], seconds, true);
            }
    return 0;
}
