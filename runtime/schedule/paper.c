// paper.c: Algorithm 2 of the paper, restated.
//
//     T = sum t_i + sum c_i [sides of i-1 and i differ] + sum over promoted i of max(w_i - seg(j, i), 0)
//
// The transfer of a promoted unit i starts at j < i: the round's start (j = 0) or a unit that runs on the CPU by
// default and in this round; between j and i every unit runs on its home. So either i - 1 extends to i on their homes,
// or j extends to i in one go: best[j on the CPU] + max(w_i, seg(j, i)) + switch + t_gpu.
#include <math.h>

#include "runtime/schedule/model.h"
#include "runtime/schedule/policies.h"

// Units count from 1 here, as in the paper: unit(i) is inst->units[i - 1].
static const struct atsi_schedule_unit *unit_at(const struct atsi_schedule_instance *inst, size_t i) {
    return &inst->units[i - 1];
}

static double switch_cost(const struct atsi_schedule_instance *inst, size_t i, int side_before, int side) {
    return i > 1 && side_before != side ? unit_at(inst, i)->switch_us : 0;
}

static double home_time(const struct atsi_schedule_unit *unit) {
    return unit->home == ATSI_GPU ? unit->t_gpu_us : unit->t_cpu_us;
}

static void sum_home_path(const struct atsi_schedule_instance *inst, double *path_us) {
    path_us[0] = 0;
    for (size_t i = 1; i <= inst->n_units; i++) {
        int before = i > 1 ? (int)unit_at(inst, i - 1)->home : 0;
        path_us[i] =
            path_us[i - 1] + switch_cost(inst, i, before, (int)unit_at(inst, i)->home) + home_time(unit_at(inst, i));
    }
}

// Unit i on its home, after unit i - 1 on either side.
static void extend_home(const struct atsi_schedule_instance *inst, struct paper_scratch *s, size_t i) {
    int side = (int)unit_at(inst, i)->home;
    double from_cpu = s->best_us[ATSI_CPU][i - 1] + switch_cost(inst, i, ATSI_CPU, side);
    double from_gpu = s->best_us[ATSI_GPU][i - 1] + switch_cost(inst, i, ATSI_GPU, side);
    s->before[side][i] = from_gpu < from_cpu ? ATSI_GPU : ATSI_CPU;
    s->best_us[side][i] = fmin(from_cpu, from_gpu) + home_time(unit_at(inst, i));
}

// Unit i promoted: the best start of its transfer. best_us of the CPU side is infinite where j is not admissible.
static void extend_promoted(const struct atsi_schedule_instance *inst, struct paper_scratch *s, size_t i) {
    const struct atsi_schedule_unit *unit = unit_at(inst, i);
    double best = INFINITY, path_us = s->path_us[i - 1];
    for (size_t j = 0; j < i; j++) {
        double cost = s->best_us[ATSI_CPU][j] + fmax2(unit->transfer_us, path_us - s->path_us[j]);
        if (cost < best) {
            best = cost;
            s->from[i] = (int32_t)j;
        }
    }
    int before = i > 1 ? (int)unit_at(inst, i - 1)->home : ATSI_GPU;
    s->best_us[ATSI_GPU][i] = best + switch_cost(inst, i, before, ATSI_GPU) + unit->t_gpu_us;
}

static void backtrack(const struct atsi_schedule_instance *inst, const struct paper_scratch *s, int side,
                      uint8_t *assignment) {
    size_t i = inst->n_units;
    while (i > 0) {
        assignment[i - 1] = (uint8_t)side;
        if (side == ATSI_CPU || unit_at(inst, i)->home == ATSI_GPU) {
            side = s->before[side][i];
            i--;
            continue;
        }
        size_t j = (size_t)s->from[i];
        while (--i > j) assignment[i - 1] = (uint8_t)unit_at(inst, i)->home;
        side = ATSI_CPU;
    }
}

double paper_policy(const struct atsi_schedule_instance *inst, struct paper_scratch *s, uint8_t *assignment) {
    size_t n = inst->n_units;
    sum_home_path(inst, s->path_us);
    s->best_us[ATSI_CPU][0] = 0;
    s->best_us[ATSI_GPU][0] = INFINITY;
    for (size_t i = 1; i <= n; i++) {
        s->best_us[ATSI_CPU][i] = s->best_us[ATSI_GPU][i] = INFINITY;
        extend_home(inst, s, i);
        if (can_promote(inst, i - 1)) extend_promoted(inst, s, i);
    }
    int side = s->best_us[ATSI_GPU][n] < s->best_us[ATSI_CPU][n] ? ATSI_GPU : ATSI_CPU;
    backtrack(inst, s, side, assignment);
    return s->best_us[side][n];
}
