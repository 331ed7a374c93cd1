// milp.c: the placement as a mixed integer program for GLPK, which checks the dynamic program and bounds it.
//
//     max  sum r_i x_i - sum c_i (u_i + d_i)     x_i in {0, 1}, u_i, d_i in [0, 1]
//     x_i - x_{i-1} = u_i - d_i                  for every boundary with c_i > 0
//     sum s_i x_i <= M
//
// u_i + d_i = |x_i - x_{i-1}| at an optimum, with one row a boundary instead of two. What tightens the relaxation:
//  - a boundary that costs more than any placement could then still make up for is never crossed (x_i = x_{i-1});
//  - Chvatal-Gomory rows of the capacity, sum floor(s_i / d) x_i <= floor(M / d) for the sizes d that occur most:
//    "at most 3 of these experts fit" is what the plain relaxation does not know. Divisible units, whose x_i is a number from 0 to 1, are
//    not in them.
#include <float.h>
#include <glpk.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "planner/solve/solve.h"

#define N_ROUNDED_ROWS_MAX 12

struct model {
    const struct atsi_solve_instance *inst;
    const struct atsi_milp_options *options;
    glp_prob *lp;
    double scale;           // objective in the model = scale * microseconds
    double start_us, bound; // bound in model units
    double *heuristic;      // [columns + 1] the incumbent for GLPK, NULL once handed over or without one
    double incumbent;       // its value in model units
    bool stopped;
};

static double seconds_spent(const struct model *m) { return (atsi_clock_us() - m->start_us) * 1e-6; }

struct atsi_milp_options atsi_milp_defaults(void) {
    return (struct atsi_milp_options){.seconds_max = 60, .seconds_enough = 2, .gap_target = 0.005};
}

static double gain(const struct atsi_solve_unit *unit) { return unit->t_cpu_us - unit->t_gpu_us; }

static bool can_be_on_gpu(const struct atsi_solve_instance *inst, size_t i) {
    const struct atsi_solve_unit *unit = &inst->units[i];
    bool fits = unit->is_divisible || atsi_solve_unit_granules(inst, i) <= atsi_solve_budget_granules(inst);
    return unit->fix != ATSI_FIX_CPU && fits;
}

// The most that residency alone could bring, without any switch.
static double gain_limit(const struct atsi_solve_instance *inst) {
    double sum = 0;
    for (size_t i = 0; i < inst->n_units; i++)
        if (can_be_on_gpu(inst, i))
            sum += inst->units[i].fix == ATSI_FIX_GPU ? gain(&inst->units[i]) : fmax(gain(&inst->units[i]), 0);
    return sum;
}

// A value that the optimum is known to reach; -infinity when nothing is known.
static double known_value(const struct atsi_solve_instance *inst, const uint8_t *incumbent) {
    struct atsi_solve_value value = {0};
    if (incumbent) {
        atsi_solve_evaluate(inst, incumbent, &value);
        return value.objective_us;
    }
    for (size_t i = 0; i < inst->n_units; i++)
        if (inst->units[i].fix == ATSI_FIX_GPU) return -INFINITY;
    return 0; // everything on the CPU
}

static void add_units(struct model *m) {
    const struct atsi_solve_instance *inst = m->inst;
    glp_add_cols(m->lp, (int)inst->n_units);
    for (size_t i = 0; i < inst->n_units; i++) {
        int column = (int)i + 1;
        glp_set_col_kind(m->lp, column, inst->units[i].is_divisible ? GLP_CV : GLP_BV);
        if (inst->units[i].is_divisible) glp_set_col_bnds(m->lp, column, GLP_DB, 0, 1);
        if (!can_be_on_gpu(inst, i))
            glp_set_col_bnds(m->lp, column, GLP_FX, 0, 0);
        else if (inst->units[i].fix == ATSI_FIX_GPU)
            glp_set_col_bnds(m->lp, column, GLP_FX, 1, 1);
        glp_set_obj_coef(m->lp, column, gain(&inst->units[i]) * m->scale);
    }
}

// The boundary in front of unit i, unless it is free.
static void add_boundary(struct model *m, size_t i, bool never_crossed) {
    double cost = m->inst->units[i].switch_us;
    if (cost == 0) return;
    int row = glp_add_rows(m->lp, 1);
    glp_set_row_bnds(m->lp, row, GLP_FX, 0, 0);
    int index[5] = {0, (int)i + 1, (int)i, 0, 0}, n = 2;
    double value[5] = {0, 1, -1, -1, 1};
    if (!never_crossed) {
        int column = glp_add_cols(m->lp, 2);
        for (int k = 0; k < 2; k++) {
            glp_set_col_bnds(m->lp, column + k, GLP_DB, 0, 1);
            glp_set_obj_coef(m->lp, column + k, -cost * m->scale);
            index[3 + k] = column + k;
        }
        n = 4;
    }
    glp_set_mat_row(m->lp, row, n, index, value);
}

static void add_boundaries(struct model *m, double known) {
    double limit = gain_limit(m->inst), affordable = limit - known;
    affordable += 1e-9 * (fabs(limit) + fabs(known) + 1); // rounding must never forbid what is exactly worth it
    for (size_t i = 1; i < m->inst->n_units; i++) add_boundary(m, i, m->inst->units[i].switch_us > affordable);
}

// sum floor(s_i / divisor) x_i <= floor(M / divisor): valid because x is integer, or left out. False without memory.
static bool add_capacity(struct model *m, uint64_t divisor) {
    size_t n = m->inst->n_units, used = 0;
    int *index = malloc((n + 1) * sizeof *index);
    double *value = malloc((n + 1) * sizeof *value);
    bool good = index && value;
    for (size_t i = 0; good && i < n; i++) {
        uint64_t weight = can_be_on_gpu(m->inst, i) ? atsi_solve_unit_granules(m->inst, i) / divisor : 0;
        if (weight == 0 || (m->inst->units[i].is_divisible && divisor > 1)) continue;
        index[++used] = (int)i + 1;
        value[used] = (double)weight;
    }
    if (good && used) {
        uint64_t capacity = atsi_solve_budget_granules(m->inst) / divisor;
        int row = glp_add_rows(m->lp, 1);
        glp_set_row_bnds(m->lp, row, GLP_UP, 0, (double)capacity);
        glp_set_mat_row(m->lp, row, (int)used, index, value);
    }
    free(index);
    free(value);
    return good;
}

struct size_count {
    uint64_t granules;
    size_t count;
};

static int compare_granules(const void *a, const void *b) {
    uint64_t x = ((const struct size_count *)a)->granules, y = ((const struct size_count *)b)->granules;
    return (x > y) - (x < y);
}

static int compare_share(const void *a, const void *b) {
    const struct size_count *x = a, *y = b;
    double p = (double)x->granules * (double)x->count, q = (double)y->granules * (double)y->count;
    return (p < q) - (p > q);
}

// Rounded capacity rows for the sizes that make up most of the bytes.
static bool add_rounded_rows(struct model *m) {
    size_t n = m->inst->n_units, n_sizes = 0;
    struct size_count *sizes = malloc(n * sizeof *sizes);
    if (!sizes) return false;
    for (size_t i = 0; i < n; i++)
        sizes[i] = (struct size_count){m->inst->units[i].is_divisible ? 0 : atsi_solve_unit_granules(m->inst, i), 1};
    qsort(sizes, n, sizeof *sizes, compare_granules);
    for (size_t i = 0; i < n; i++) {
        if (n_sizes && sizes[n_sizes - 1].granules == sizes[i].granules)
            sizes[n_sizes - 1].count++;
        else
            sizes[n_sizes++] = sizes[i];
    }
    qsort(sizes, n_sizes, sizeof *sizes, compare_share);
    bool good = true;
    for (size_t k = 0, rows = 0; k < n_sizes && rows < N_ROUNDED_ROWS_MAX && good; k++) {
        if (sizes[k].granules < 2 || sizes[k].granules > atsi_solve_budget_granules(m->inst)) continue;
        good = add_capacity(m, sizes[k].granules);
        rows++;
    }
    free(sizes);
    return good;
}

static bool build(struct model *m, double known) {
    m->lp = glp_create_prob();
    glp_set_obj_dir(m->lp, GLP_MAX);
    add_units(m);
    add_boundaries(m, known);
    return add_capacity(m, 1) && add_rounded_rows(m);
}

// The incumbent as a column vector: units, then the pair of each boundary that has one.
static bool make_heuristic(struct model *m) {
    const uint8_t *placement = m->options->incumbent;
    if (!placement) return true;
    m->heuristic = calloc((size_t)glp_get_num_cols(m->lp) + 1, sizeof *m->heuristic);
    if (!m->heuristic) return false;
    size_t n = m->inst->n_units;
    for (size_t i = 0; i < n; i++) m->heuristic[i + 1] = placement[i];
    int column = (int)n, index[5], row = 0;
    double value[5];
    for (size_t i = 1; i < n; i++) {
        if (m->inst->units[i].switch_us == 0) continue;
        if (glp_get_mat_row(m->lp, ++row, index, value) < 4) continue;
        m->heuristic[column + 1] = placement[i] > placement[i - 1];
        m->heuristic[column + 2] = placement[i] < placement[i - 1];
        column += 2;
    }
    m->incumbent = known_value(m->inst, placement) * m->scale;
    return true;
}

static bool good_enough(const struct model *m, double seconds) {
    double best = glp_mip_status(m->lp) == GLP_FEAS ? glp_mip_obj_val(m->lp) : -INFINITY;
    if (m->options->incumbent) best = fmax(best, m->incumbent);
    double gap = (m->bound - best) / fmax(m->scale, fabs(best));
    return seconds >= m->options->seconds_enough && gap <= m->options->gap_target;
}

// GLPK calls this at every stage of every node; at the choice of a node all open nodes stand in the tree with their
// bounds.
static void on_node(glp_tree *tree, void *info) {
    struct model *m = info;
    int reason = glp_ios_reason(tree);
    if (reason == GLP_IHEUR && m->heuristic) {
        glp_ios_heur_sol(tree, m->heuristic);
        free(m->heuristic);
        m->heuristic = NULL;
    }
    if (reason != GLP_ISELECT) return;
    int best = glp_ios_best_node(tree);
    if (best) m->bound = fmin(m->bound, glp_ios_node_bound(tree, best));
    double seconds = seconds_spent(m);
    if (good_enough(m, seconds) || seconds >= m->options->seconds_max) {
        m->stopped = true;
        glp_ios_terminate(tree);
    }
}

static int milliseconds_left(const struct model *m) {
    double left = 1000 * (m->options->seconds_max - seconds_spent(m));
    return left < 1 ? 1 : left > 1e9 ? 1000000000 : (int)left;
}

static bool solve_relaxation(struct model *m, struct atsi_milp_result *out) {
    glp_smcp options;
    glp_init_smcp(&options);
    options.msg_lev = GLP_MSG_OFF;
    options.meth = GLP_DUALP;
    options.tm_lim = milliseconds_left(m);
    glp_scale_prob(m->lp, GLP_SF_AUTO);
    glp_adv_basis(m->lp, 0);
    if (glp_simplex(m->lp, &options) != 0 || glp_get_status(m->lp) != GLP_OPT) return false;
    m->bound = glp_get_obj_val(m->lp);
    out->lp_bound_us = m->bound / m->scale;
    return true;
}

// Returns whether the search ran; *proven tells whether it ended with an optimum.
static bool search(struct model *m, bool *proven) {
    glp_iocp options;
    glp_init_iocp(&options);
    options.msg_lev = GLP_MSG_OFF;
    options.br_tech = GLP_BR_PCH;
    options.bt_tech = GLP_BT_BLB;
    options.mir_cuts = GLP_ON;
    options.cov_cuts = GLP_ON;
    options.tol_int = 1e-9; // a placement off by 1e-5 of a 512 MiB unit would not fit
    options.cb_func = on_node;
    options.cb_info = m;
    options.tm_lim = milliseconds_left(m);
    int code = glp_intopt(m->lp, &options);
    *proven = code == 0 && glp_mip_status(m->lp) == GLP_OPT && !m->stopped;
    return code == 0 || code == GLP_ETMLIM || code == GLP_ESTOP || code == GLP_EMIPGAP;
}

// GLPK's best placement, rounded and evaluated exactly. False when it holds none that fits.
static bool take_placement(const struct model *m, uint8_t *placement, struct atsi_milp_result *out) {
    int status = glp_mip_status(m->lp);
    if (status != GLP_OPT && status != GLP_FEAS) return false;
    for (size_t i = 0; i < m->inst->n_units; i++)
        placement[i] = glp_mip_col_val(m->lp, (int)i + 1) > (m->inst->units[i].is_divisible ? 1 - 1e-9 : 0.5);
    struct atsi_solve_value value;
    atsi_solve_evaluate(m->inst, placement, &value);
    out->objective_us = value.objective_us;
    return value.used_granules <= atsi_solve_budget_granules(m->inst);
}

static enum atsi_status run(struct model *m, double known, uint8_t *placement, struct atsi_milp_result *out,
                            struct atsi_error *err) {
    if (!build(m, known) || !make_heuristic(m)) return atsi_fail(err, ATSI_FAILED, "cross-check: out of memory");
    bool proven = false;
    if (!solve_relaxation(m, out) || !search(m, &proven)) return ATSI_OK; // stays skipped
    if (!take_placement(m, placement, out)) return ATSI_OK; // a bound without a placement is no cross-check
    bool in_parts = atsi_solve_has_divisible(m->inst);
    out->status = proven && !in_parts ? ATSI_MILP_OPTIMAL : ATSI_MILP_BOUNDED;
    out->bound_us = proven ? (in_parts ? glp_mip_obj_val(m->lp) / m->scale : out->objective_us) : m->bound / m->scale;
    out->bound_us = fmax(out->bound_us, known); // what is reached bounds the optimum from below, whatever the rounding
    return ATSI_OK;
}

enum atsi_status atsi_solve_milp(const struct atsi_solve_instance *inst, const struct atsi_milp_options *options,
                                 uint8_t *placement, struct atsi_milp_result *out, struct atsi_error *err) {
    *out = (struct atsi_milp_result){.status = ATSI_MILP_SKIPPED};
    if (options->seconds_max <= 0) return ATSI_OK;
    uint8_t *best = malloc(inst->n_units);
    if (!best) return atsi_fail(err, ATSI_FAILED, "cross-check: out of memory");
    double known = known_value(inst, options->incumbent);
    struct model m = {.inst = inst, .options = options, .start_us = atsi_clock_us()};
    m.scale = 1000 / fmax(1, isfinite(known) ? fabs(known) : gain_limit(inst));
    int output = glp_term_out(GLP_OFF);
    enum atsi_status status = run(&m, known, best, out, err);
    out->seconds = seconds_spent(&m);
    if (status == ATSI_OK && out->status != ATSI_MILP_SKIPPED && placement) memcpy(placement, best, inst->n_units);
    if (m.lp) glp_delete_prob(m.lp);
    glp_term_out(output);
    glp_free_env();
    free(m.heuristic);
    free(best);
    return status;
}
