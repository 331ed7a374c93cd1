// bound.c: a lower bound of every assignment's total.
//
// Two chains end no later than the round. The compute chain takes every unit's time and every switch. The engine chain
// takes the transfers one after another, then the last promoted unit and everything after it. So for any weight w in
// [0, 1] the round takes at least w * compute + (1 - w) * engine; for a fixed w the assignment that makes this sum
// least is a chain over (side, "there is still a promotion to come"), and the best w gives the bound. The sum's minimum
// is concave in w, so a golden-section search finds its peak; every w is valid, so stopping early only loses tightness.
#include <math.h>

#include "runtime/schedule/model.h"
#include "runtime/schedule/policies.h"

enum {
    N_WEIGHTS = 12
}; // to 1/500 of the range

// Least cost so far with the last unit on a side: before the last promotion (weighted) and after it (full).
struct chain {
    double open[2], closed[2];
};

static double least(double a, double b) { return a < b ? a : b; }

static double arrive(const double from[2], int side, double switch_us) {
    return least(from[side], from[!side] + switch_us);
}

static struct chain step_chain(const struct atsi_schedule_instance *inst, const struct chain *c, size_t i,
                               double weight) {
    const struct atsi_schedule_unit *unit = &inst->units[i];
    struct chain next = {{INFINITY, INFINITY}, {INFINITY, INFINITY}};
    int home = (int)unit->home;
    double home_us = home == ATSI_GPU ? unit->t_gpu_us : unit->t_cpu_us, switch_us = i ? unit->switch_us : 0;
    next.open[home] = arrive(c->open, home, weight * switch_us) + weight * home_us;
    next.closed[home] = arrive(c->closed, home, switch_us) + home_us;
    if (can_promote(inst, i)) {
        double before = arrive(c->open, ATSI_GPU, weight * switch_us) + (1 - weight) * unit->transfer_us;
        next.open[ATSI_GPU] = least(next.open[ATSI_GPU], before + weight * unit->t_gpu_us);
        next.closed[ATSI_GPU] = least(next.closed[ATSI_GPU], before + unit->t_gpu_us);
    }
    return next;
}

// The bound of one weight. Starting closed at 0 stands for a round without any promotion.
static double bound_at(const struct atsi_schedule_instance *inst, double weight) {
    struct chain c = {{0, 0}, {0, 0}};
    for (size_t i = 0; i < inst->n_units; i++) c = step_chain(inst, &c, i, weight);
    return least(c.closed[0], c.closed[1]);
}

double lower_bound(const struct atsi_schedule_instance *inst, double *clock_weight) {
    const double golden = 0.6180339887498949;
    double low = 0, high = 1, best = bound_at(inst, 1), weight[2] = {1 - golden, golden}, bound[2];
    *clock_weight = 1;
    for (int j = 0; j < 2; j++) bound[j] = bound_at(inst, weight[j]);
    for (int k = 0; k < N_WEIGHTS; k++) {
        int better = bound[1] > bound[0]; // the peak is not on the other side of the worse one
        if (bound[better] > best) {
            best = bound[better];
            *clock_weight = weight[better];
        }
        *(better ? &low : &high) = weight[!better];
        weight[!better] = weight[better];
        bound[!better] = bound[better];
        weight[better] = better ? low + golden * (high - low) : high - golden * (high - low);
        bound[better] = bound_at(inst, weight[better]);
    }
    return best;
}
