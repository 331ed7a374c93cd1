#include "kernels/cpu/steps.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/products.h"

enum {
    GROUP_CHAINS = 16,
    GROUP_SPANS = 128,
    GROUP_PARTS = 8192, // of rows that more than one step completes
    OPEN_GROUPS = 4,    // the last ones, which still take steps
    NO_STEP = UINT32_MAX
};

struct chain {
    uint32_t first, last; // steps
    // The first so many are given items, each as many as the first one. The others follow where all of these are done.
    uint32_t n_leads;
    uint32_t next; // chain of the group
};

struct group {
    uint32_t first_chain, last_chain, n_chains;
    uint32_t n_parts; // at most, of chains with several leads
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
    struct touched open[OPEN_GROUPS];        // group g at g % OPEN_GROUPS
    _Atomic uint32_t n_arrived[GROUP_PARTS]; // leads that have done their part, of the group that runs
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
    steps->chains[chain] = (struct chain){.first = step, .last = step, .n_leads = 1, .next = NO_STEP};
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

// Steps `first` .. `last` behind those of the chain.
static void append_to_chain(struct atsi_steps *steps, uint32_t chain, uint32_t first, uint32_t last) {
    steps->steps[steps->chains[chain].last].next = first;
    steps->chains[chain].last = last;
}

// Puts the step into a chain of the group, NO_STEP: one of its own.
static void place_step(struct atsi_steps *steps, const struct atsi_step *step, const struct atsi_span *spans,
                       uint32_t n_spans, uint32_t group, uint32_t chain) {
    uint32_t index = steps->n_steps++;
    steps->steps[index] = *step;
    steps->steps[index].next = NO_STEP;
    if (chain == NO_STEP)
        chain = start_chain(steps, &steps->groups[group], index);
    else
        append_to_chain(steps, chain, index, index);
    struct touched *touched = touched_by(steps, group);
    for (uint32_t i = 0; i < n_spans; i++)
        if (spans[i].data != NULL)
            touched->spans[touched->n_spans++] = (struct placed_span){.span = spans[i], .chain = chain};
}

void atsi_steps_add(struct atsi_steps *steps, const struct atsi_step *step, const struct atsi_span *spans,
                    uint32_t n_spans) {
    if (step->count == NULL && step->n_items == 0) return;
    uint32_t chain, group = find_group(steps, step, spans, n_spans, &chain);
    if (group == steps->n_groups) start_group(steps);
    place_step(steps, step, spans, n_spans, group, chain);
}

// ---- steps that follow parts ------------------------------------------------------------------------------------------

// Chains of one group.
struct chain_set {
    uint32_t chains[ATSI_STEP_SPANS], n;
};

static bool has_chain(const struct chain_set *set, uint32_t chain) {
    for (uint32_t i = 0; i < set->n; i++)
        if (set->chains[i] == chain) return true;
    return false;
}

static bool same_memory(const struct atsi_span *a, const struct atsi_span *b) {
    return a->data == b->data && a->stride == b->stride && a->width == b->width && a->n_rows == b->n_rows;
}

// The chains of the group that the step depends on. False: it depends on more than parts of its own cut.
static bool find_parts(const struct atsi_steps *steps, const struct touched *group, const struct atsi_step *step,
                       const struct atsi_span *spans, uint32_t n_spans, struct chain_set *found) {
    found->n = 0;
    for (uint32_t i = 0; i < group->n_spans; i++) {
        const struct placed_span *old = &group->spans[i];
        for (uint32_t j = 0; j < n_spans; j++) {
            if ((!old->span.write && !spans[j].write) || meet(&old->span, &spans[j]) == APART) continue;
            const struct atsi_step *before = &steps->steps[steps->chains[old->chain].last];
            bool in_parts = old->span.in_parts && spans[j].in_parts && same_memory(&old->span, &spans[j]);
            if (!in_parts || before->cut != step->cut) return false;
            if (has_chain(found, old->chain)) continue;
            if (found->n == ATSI_STEP_SPANS) return false;
            found->chains[found->n++] = old->chain;
        }
    }
    return true;
}

// Whether the chains can be one, all of their steps leads.
static bool can_merge(const struct atsi_steps *steps, const struct group *group, const struct chain_set *set) {
    for (uint32_t i = 0; i < set->n && set->n > 1; i++)
        if (steps->chains[set->chains[i]].first != steps->chains[set->chains[i]].last) return false;
    return set->n == 1 || group->n_parts + steps->steps[steps->chains[set->chains[0]].first].n_parts_max <= GROUP_PARTS;
}

// Makes the chains of the set one, in the order in which they stand in the group. Returns it.
static uint32_t merge_chains(struct atsi_steps *steps, uint32_t i_group, const struct chain_set *set) {
    struct group *group = &steps->groups[i_group];
    struct touched *touched = touched_by(steps, i_group);
    uint32_t merged = NO_STEP, before = NO_STEP;
    if (set->n > 1) group->n_parts += steps->steps[steps->chains[set->chains[0]].first].n_parts_max;
    for (uint32_t c = group->first_chain; c != NO_STEP; c = steps->chains[c].next) {
        if (!has_chain(set, c) || merged == NO_STEP) {
            if (has_chain(set, c)) merged = c;
            before = c;
            continue;
        }
        append_to_chain(steps, merged, steps->chains[c].first, steps->chains[c].last);
        steps->chains[merged].n_leads++;
        steps->chains[before].next = steps->chains[c].next; // one of the set stands before
        if (group->last_chain == c) group->last_chain = before;
        group->n_chains--;
        for (uint32_t i = 0; i < touched->n_spans; i++)
            if (touched->spans[i].chain == c) touched->spans[i].chain = merged;
    }
    return merged;
}

bool atsi_steps_follow(struct atsi_steps *steps, const struct atsi_step *step, const struct atsi_span *spans,
                       uint32_t n_spans) {
    uint32_t n_open = steps->n_groups < OPEN_GROUPS ? steps->n_groups : OPEN_GROUPS;
    for (uint32_t i = 1; i <= n_open; i++) {
        uint32_t group = steps->n_groups - i;
        struct chain_set found;
        if (!find_parts(steps, touched_by(steps, group), step, spans, n_spans, &found)) return false;
        if (found.n == 0) continue;
        if (!has_room(steps, group, 0, n_spans) || !can_merge(steps, &steps->groups[group], &found)) return false;
        place_step(steps, step, spans, n_spans, group, merge_chains(steps, group, &found));
        return true;
    }
    return false;
}

// ---- running --------------------------------------------------------------------------------------------------------

// A chain of the current group.
struct running {
    uint32_t first, n_leads;
    uint32_t n_items;            // of each lead
    uint32_t end;                // items up to and with this chain's
    _Atomic uint32_t *n_arrived; // [n_items] where there are several leads
};

struct team {
    struct atsi_steps *steps;
    struct atsi_cpu *cpu;
    struct running chains[GROUP_CHAINS];
};

static uint32_t begin_group(void *context, uint32_t i_group) {
    struct team *team = context;
    struct atsi_steps *steps = team->steps;
    uint32_t end = 0, n = 0, n_parts = 0;
    for (uint32_t c = steps->groups[i_group].first_chain; c != NO_STEP; c = steps->chains[c].next) {
        const struct chain *chain = &steps->chains[c];
        const struct atsi_step *first = &steps->steps[chain->first];
        uint32_t n_items = first->count != NULL ? first->count(team->cpu, first) : first->n_items;
        end += chain->n_leads * n_items;
        team->chains[n++] = (struct running){.first = chain->first,
                                             .n_leads = chain->n_leads,
                                             .n_items = n_items,
                                             .end = end,
                                             .n_arrived = steps->n_arrived + n_parts};
        for (uint32_t i = 0; i < n_items && chain->n_leads > 1; i++)
            atomic_store_explicit(&steps->n_arrived[n_parts++], 0, memory_order_relaxed);
    }
    return end;
}

// What an item of the group is: a part of a chain, of its i-th lead.
struct place_of_item {
    const struct running *chain;
    uint32_t lead, part;
};

static struct place_of_item find_item(const struct team *team, uint32_t item) {
    const struct running *chain = team->chains;
    uint32_t lead = 0, begin = 0;
    for (; item >= chain->end; chain++) begin = chain->end;
    for (item -= begin; item >= chain->n_items; item -= chain->n_items) lead++;
    return (struct place_of_item){chain, lead, item};
}

static uint32_t step_behind(const struct atsi_steps *steps, uint32_t step, uint32_t n) {
    while (n-- > 0) step = steps->steps[step].next;
    return step;
}

// A lead has done the part: what follows, if it was the last one.
static void run_followers(const struct team *team, const struct place_of_item *at, int i_thread) {
    const struct atsi_step *steps = team->steps->steps;
    uint32_t n_leads = at->chain->n_leads;
    if (n_leads > 1 &&
        atomic_fetch_add_explicit(&at->chain->n_arrived[at->part], 1, memory_order_acq_rel) + 1 < n_leads)
        return;
    for (uint32_t s = step_behind(team->steps, at->chain->first, n_leads); s != NO_STEP; s = steps[s].next)
        steps[s].run(team->cpu, &steps[s], at->part, i_thread);
}

static void run_item(void *context, uint32_t i_group, uint32_t item, int i_thread) {
    const struct team *team = context;
    struct place_of_item at = find_item(team, item);
    const struct atsi_step *lead = &team->steps->steps[step_behind(team->steps, at.chain->first, at.lead)];
    (void)i_group;
    lead->run(team->cpu, lead, at.part, i_thread);
    run_followers(team, &at, i_thread);
}

// The same behind a result that was computed as an item of a job.
static void item_kept(void *context, uint32_t item, int i_thread) {
    struct place_of_item at = find_item(context, item);
    run_followers(context, &at, i_thread);
}

static bool is_short(const struct atsi_step *step) { return step->by_row && step->call->round.round->n_tokens == 1; }

// Adds the chain's items to the job, in their order. What follows them is done where results are kept, once each.
static bool detach_chain(const struct team *team, const struct chain *chain, struct atsi_products *job) {
    const struct atsi_step *steps = team->steps->steps;
    uint32_t n = 0;
    for (uint32_t s = chain->first; s != NO_STEP; s = steps[s].next, n++)
        if (n < chain->n_leads ? steps[s].detach == NULL || !steps[s].detach(team->cpu, &steps[s], job)
                               : steps[s].cut == NULL)
            return false;
    return true;
}

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
        all_detached = all_detached && detach_chain(team, &steps->chains[c], products);
    }
    if (all_detached) atsi_products_when_kept(products, item_kept, team);
    return all_detached ? ATSI_POOL_REPEATS : all_short ? ATSI_POOL_ALONE : ATSI_POOL_SHARES;
}

uint32_t atsi_steps_run(struct atsi_steps *steps, struct atsi_cpu *cpu, struct atsi_pool *pool) {
    uint32_t n_phases = steps->n_groups;
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
    return n_phases;
}
