#include "kernels/cpu/steps.h"

#include <stddef.h>
#include <stdlib.h>

#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/products.h"

enum {
    GROUP_CHAINS = 16,
    GROUP_SPANS = 128,
    OPEN_GROUPS = 4, // the last ones, which still take steps
    NO_STEP = UINT32_MAX
};

struct chain {
    uint32_t first, last; // steps
    uint32_t next;        // chain of the group
};

struct group {
    uint32_t first_chain, last_chain, n_chains;
};

struct placed_span {
    struct atsi_span span;
    uint32_t chain;
};

// What an open group touches.
struct touched {
    struct placed_span spans[GROUP_SPANS];
    uint32_t n_spans;
};

struct atsi_steps {
    struct atsi_step *steps; // [cap]
    struct chain *chains;    // [cap]
    struct group *groups;    // [cap]
    uint32_t cap, n_steps, n_chains, n_groups;
    struct touched open[OPEN_GROUPS]; // group g at g % OPEN_GROUPS
};

struct atsi_steps *atsi_steps_create(uint32_t n_steps_max) {
    struct atsi_steps *steps = calloc(1, sizeof *steps);
    if (steps == NULL) return NULL;
    steps->cap = n_steps_max;
    steps->steps = calloc(n_steps_max, sizeof *steps->steps);
    steps->chains = calloc(n_steps_max, sizeof *steps->chains);
    steps->groups = calloc(n_steps_max, sizeof *steps->groups);
    if (steps->steps != NULL && steps->chains != NULL && steps->groups != NULL) return steps;
    atsi_steps_free(steps);
    return NULL;
}

void atsi_steps_free(struct atsi_steps *steps) {
    if (steps == NULL) return;
    free(steps->steps);
    free(steps->chains);
    free(steps->groups);
    free(steps);
}

bool atsi_steps_full(const struct atsi_steps *steps, uint32_t n_more) { return steps->n_steps + n_more > steps->cap; }

struct atsi_span atsi_span_bytes(const void *data, uint64_t bytes, bool write) {
    // One row as wide as can be said; more than 16 GiB become several rows.
    uint64_t words = (bytes + 3) / 4;
    uint32_t n_rows = (uint32_t)(words / UINT32_MAX) + 1;
    uint32_t width = (uint32_t)((words + n_rows - 1) / n_rows);
    return (struct atsi_span){.data = data, .stride = width, .width = width, .n_rows = n_rows, .write = write};
}

// ---- what two steps have in common ------------------------------------------------------------------------------------

enum meeting {
    APART,
    SAME_ROWS, // row i of one meets row i of the other and no other row
    ACROSS
};

static uintptr_t span_end(const struct atsi_span *s) {
    return (uintptr_t)s->data + (((uint64_t)s->n_rows - 1) * s->stride + s->width) * 4;
}

static enum meeting meet(const struct atsi_span *a, const struct atsi_span *b) {
    if (a->data == NULL || b->data == NULL || a->n_rows == 0 || b->n_rows == 0) return APART;
    uintptr_t a_start = (uintptr_t)a->data, b_start = (uintptr_t)b->data;
    if (span_end(a) <= b_start || span_end(b) <= a_start) return APART;
    if (a->stride != b->stride) return ACROSS;
    // Views of one buffer: both lie within one stride from the lower start, so rows r of both are columns of one row.
    const struct atsi_span *low = a_start <= b_start ? a : b, *high = low == a ? b : a;
    uint64_t distance = ((uintptr_t)high->data - (uintptr_t)low->data) / 4;
    if (low->width > low->stride || distance + high->width > low->stride) return ACROSS;
    return distance >= low->width ? APART : SAME_ROWS;
}

bool atsi_spans_overlap(const struct atsi_span *a, const struct atsi_span *b) { return meet(a, b) != APART; }

// ---- building -------------------------------------------------------------------------------------------------------

static bool can_chain(const struct atsi_step *a, const struct atsi_step *b) {
    if (a->count != NULL || b->count != NULL || a->n_items != b->n_items) return false;
    return a->n_items == 1 || (a->by_row && b->by_row);
}

enum place {
    APART_FROM_ALL, // any order of the step and the group will do
    JOINS_CHAIN,
    COMES_AFTER
};

// How the step stands to a group. *chain: the only chain that it depends on.
static enum place find_place(const struct atsi_steps *steps, const struct touched *group, const struct atsi_step *step,
                             const struct atsi_span *spans, uint32_t n_spans, uint32_t *chain) {
    enum place place = APART_FROM_ALL;
    for (uint32_t i = 0; i < group->n_spans; i++) {
        const struct placed_span *old = &group->spans[i];
        for (uint32_t j = 0; j < n_spans; j++) {
            if (!old->span.write && !spans[j].write) continue;
            enum meeting meeting = meet(&old->span, &spans[j]);
            if (meeting == APART) continue;
            if (place == JOINS_CHAIN && old->chain != *chain) return COMES_AFTER;
            const struct atsi_step *before = &steps->steps[steps->chains[old->chain].last];
            bool by_rows =
                meeting == SAME_ROWS && old->span.n_rows == step->n_items && spans[j].n_rows == step->n_items;
            if (!can_chain(before, step) || (!by_rows && step->n_items != 1)) return COMES_AFTER;
            place = JOINS_CHAIN;
            *chain = old->chain;
        }
    }
    return place;
}

static struct touched *touched_by(struct atsi_steps *steps, uint32_t group) {
    return &steps->open[group % OPEN_GROUPS];
}

static void start_group(struct atsi_steps *steps) {
    uint32_t group = steps->n_groups++;
    steps->groups[group] = (struct group){.first_chain = NO_STEP, .last_chain = NO_STEP};
    touched_by(steps, group)->n_spans = 0;
}

static uint32_t start_chain(struct atsi_steps *steps, struct group *group, uint32_t step) {
    uint32_t chain = steps->n_chains++;
    steps->chains[chain] = (struct chain){.first = step, .last = step, .next = NO_STEP};
    if (group->n_chains++ == 0)
        group->first_chain = chain;
    else
        steps->chains[group->last_chain].next = chain;
    group->last_chain = chain;
    return chain;
}

static bool has_room(struct atsi_steps *steps, uint32_t group, uint32_t n_chains, uint32_t n_spans) {
    return steps->groups[group].n_chains + n_chains <= GROUP_CHAINS &&
           touched_by(steps, group)->n_spans + n_spans <= GROUP_SPANS;
}

// The first group that can take the step without passing what it depends on; n_groups when a new one must. *chain: which it joins,
// NO_STEP for one of its own.
static uint32_t find_group(struct atsi_steps *steps, const struct atsi_step *step, const struct atsi_span *spans,
                           uint32_t n_spans, uint32_t *chain) {
    uint32_t found = steps->n_groups, n_open = found < OPEN_GROUPS ? found : OPEN_GROUPS;
    *chain = NO_STEP;
    for (uint32_t i = 1; i <= n_open; i++) {
        uint32_t group = steps->n_groups - i, joined = NO_STEP;
        enum place place = find_place(steps, touched_by(steps, group), step, spans, n_spans, &joined);
        if (place == COMES_AFTER) return found;
        if (place == JOINS_CHAIN) {
            if (!has_room(steps, group, 0, n_spans)) return found;
            *chain = joined;
            return group;
        }
        if (has_room(steps, group, 1, n_spans)) found = group;
    }
    return found;
}

void atsi_steps_add(struct atsi_steps *steps, const struct atsi_step *step, const struct atsi_span *spans,
                    uint32_t n_spans) {
    if (step->count == NULL && step->n_items == 0) return;
    uint32_t chain, group = find_group(steps, step, spans, n_spans, &chain), index = steps->n_steps++;
    steps->steps[index] = *step;
    steps->steps[index].next = NO_STEP;
    if (group == steps->n_groups) start_group(steps);
    if (chain == NO_STEP) {
        chain = start_chain(steps, &steps->groups[group], index);
    } else {
        steps->steps[steps->chains[chain].last].next = index;
        steps->chains[chain].last = index;
    }
    struct touched *touched = touched_by(steps, group);
    for (uint32_t i = 0; i < n_spans; i++)
        if (spans[i].data != NULL)
            touched->spans[touched->n_spans++] = (struct placed_span){.span = spans[i], .chain = chain};
}

// ---- running --------------------------------------------------------------------------------------------------------

struct team {
    const struct atsi_steps *steps;
    struct atsi_cpu *cpu;
    // Of the current group: each chain's first step, and the number of items up to and with it.
    uint32_t firsts[GROUP_CHAINS], ends[GROUP_CHAINS];
};

static uint32_t begin_group(void *context, uint32_t i_group) {
    struct team *team = context;
    const struct atsi_steps *steps = team->steps;
    uint32_t n_items = 0, n = 0;
    for (uint32_t c = steps->groups[i_group].first_chain; c != NO_STEP; c = steps->chains[c].next, n++) {
        const struct atsi_step *first = &steps->steps[steps->chains[c].first];
        n_items += first->count != NULL ? first->count(team->cpu, first) : first->n_items;
        team->firsts[n] = steps->chains[c].first;
        team->ends[n] = n_items;
    }
    return n_items;
}

static void run_item(void *context, uint32_t i_group, uint32_t item, int i_thread) {
    const struct team *team = context;
    const struct atsi_steps *steps = team->steps;
    uint32_t c = 0;
    (void)i_group;
    while (item >= team->ends[c]) c++;
    if (c > 0) item -= team->ends[c - 1];
    for (uint32_t s = team->firsts[c]; s != NO_STEP; s = steps->steps[s].next)
        steps->steps[s].run(team->cpu, &steps->steps[s], item, i_thread);
}

static bool is_short(const struct atsi_step *step) { return step->by_row && step->call->round.round->n_tokens == 1; }

// On a crowded machine products of a token are repeated where need be; what stands between them is so short that the thread which is
// there does it by itself, as each of 16 might lose its core just then.
static enum atsi_pool_way crowded_way(void *context, uint32_t i_group, void *job) {
    struct team *team = context;
    const struct atsi_steps *steps = team->steps;
    struct atsi_products *products =
        job != NULL ? atsi_products_clear(job, &team->cpu->matmul, team->cpu->job_in_bytes) : NULL;
    bool all_short = true, all_detached = products != NULL;
    for (uint32_t c = steps->groups[i_group].first_chain; c != NO_STEP; c = steps->chains[c].next) {
        for (uint32_t s = steps->chains[c].first; s != NO_STEP; s = steps->steps[s].next)
            all_short = all_short && is_short(&steps->steps[s]);
        const struct atsi_step *first = &steps->steps[steps->chains[c].first];
        all_detached = all_detached && first->next == NO_STEP && first->detach != NULL &&
                       first->detach(team->cpu, first, products);
    }
    return all_detached ? ATSI_POOL_REPEATS : all_short ? ATSI_POOL_ALONE : ATSI_POOL_SHARES;
}

void atsi_steps_run(struct atsi_steps *steps, struct atsi_cpu *cpu, struct atsi_pool *pool) {
    struct team team = {.steps = steps, .cpu = cpu};
    struct atsi_pool_work work = {.n_phases = steps->n_groups,
                                  .begin = begin_group,
                                  .item = run_item,
                                  .repeats = cpu != NULL ? cpu->repeats : NULL,
                                  .crowded_way = crowded_way};
    if (pool != NULL) {
        atsi_pool_share(pool, &work, &team);
    } else {
        for (uint32_t g = 0; g < steps->n_groups; g++)
            for (uint32_t item = 0, n_items = begin_group(&team, g); item < n_items; item++)
                run_item(&team, g, item, 0);
    }
    steps->n_steps = steps->n_chains = steps->n_groups = 0;
}
