// steps.h: a list of operations as steps that a team of threads works off, with barriers only where they are needed.
//
// An operation becomes one or more steps; a step is n_items pieces of work that any thread may do in any order. Steps that
// do not touch each other's data form one group, a phase of the pool: its items are shared out together, and all are done before the next.
// A step goes to the earliest of the last few groups that it does not depend on, or joins what it depends on there: the matrices
// that read one input form one group whatever stands between them in the program.
// Within a group, row-wise steps (item i touches row i alone) that follow each other on the same data form a chain: the thread
// that takes item i does all of them for row i. So a decoded token passes norm, quantisation of the result and the like without
// a barrier, and in prefill a row stays in the cache.
// Steps of one cut do the same part of a row with the same item. What reads such parts alone can follow the steps that write them (atsi_steps_follow):
// whoever completes the last of these for part i does part i of what follows, in the same phase. Their items are shared out as if nothing followed.
#ifndef ATSI_KERNELS_CPU_STEPS_H
#define ATSI_KERNELS_CPU_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/pool.h"
#include "kernels/op_call.h"

struct atsi_cpu;
struct atsi_products;
struct atsi_step;

typedef void atsi_step_run(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t i_item, int i_thread);
typedef uint32_t atsi_step_count(struct atsi_cpu *cpu, const struct atsi_step *step);
// Adds the step's items to a job whose items may be repeated, when the step's group starts. False: it cannot be done so.
typedef bool atsi_step_detach(struct atsi_cpu *cpu, const struct atsi_step *step, struct atsi_products *job);

enum {
    ATSI_STEP_SPANS = 8
};

// Memory that a step reads or writes: n_rows rows of `width` 4-byte elements, `stride` elements apart.
struct atsi_span {
    const void *data;
    uint32_t stride, width, n_rows;
    bool write;    // written, and perhaps read
    bool in_parts; // of a step with a cut: an item touches its part alone
};

struct atsi_step {
    atsi_step_run *run;
    // Not NULL: gives n_items when the group starts (it depends on what earlier groups computed).
    atsi_step_count *count;
    atsi_step_detach *detach; // NULL: the step is done once, by the threads that take its items
    const struct atsi_op_call *call;
    uint32_t n_items;
    bool by_row; // item i touches row i of every span alone
    // The product whose items cut its output into parts: item i of this step does part i as well. NULL: there are no such parts.
    const struct atsi_op_call *cut;
    uint32_t n_parts_max; // at most so many items, where there is a cut
    uint32_t arg[4];      // for `run`
    uint32_t next;        // in the chain; filled in by atsi_steps_add
};

struct atsi_steps;

// Room for lists of up to n_steps_max steps; a longer list is run in pieces. NULL when out of memory.
struct atsi_steps *atsi_steps_create(uint32_t n_steps_max);
void atsi_steps_free(struct atsi_steps *steps); // NULL fine
bool atsi_steps_full(const struct atsi_steps *steps, uint32_t n_more);
// Appends a step (copied). Steps take effect in the order in which they are added. n_spans <= ATSI_STEP_SPANS.
void atsi_steps_add(struct atsi_steps *steps, const struct atsi_step *step, const struct atsi_span *spans,
                    uint32_t n_spans);
// Appends a step with a cut that reads what steps of the same cut have written, all of these in one group. It is given no items: its i-th one is
// done when the i-th of all that it depends on are. False: nothing was appended, as it depends on more than these parts.
bool atsi_steps_follow(struct atsi_steps *steps, const struct atsi_step *step, const struct atsi_span *spans,
                       uint32_t n_spans);
// Runs and clears the list. Returns the number of its phases. pool NULL: on the calling thread alone. cpu: what the steps are given.
uint32_t atsi_steps_run(struct atsi_steps *steps, struct atsi_cpu *cpu, struct atsi_pool *pool);
// Whether two spans share bytes.
bool atsi_spans_overlap(const struct atsi_span *a, const struct atsi_span *b);

// A contiguous piece of memory as a span.
struct atsi_span atsi_span_bytes(const void *data, uint64_t bytes, bool write);

#endif
