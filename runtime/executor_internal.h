// executor_internal.h: what executor.c (memory, states), executor_prepare.c (assignments), executor_round.c (rounds) and
// executor_ahead.c (rounds launched at once) share; private to them.
#ifndef ATSI_RUNTIME_EXECUTOR_INTERNAL_H
#define ATSI_RUNTIME_EXECUTOR_INTERNAL_H

#include "kernels/narrow_call.h"
#include "runtime/executor.h"
#include "runtime/launcher.h"
#include "runtime/recorder.h"
#include "runtime/schedule/script.h"
#include "runtime/schedule/script_cost.h"
#include "runtime/side.h"
#include "runtime/transfers.h"

// What the host writes for a round and a device copies: the struct, the token ids and the output rows, as one row of int32.
struct atsi_staging {
    int32_t *host;      // mapped
    const int32_t *dev; // its device address
    int32_t *device;    // the copy that kernels read
    uint32_t n_ints;
};

// Events around a run of device actions, and what they told last.
struct atsi_timed_run {
    struct atsi_event *began, *ended; // NULL where no run of device actions starts
    uint32_t n;                       // actions; 0: not timed since the last report
};

// Where each side says how far it has come in a round that was launched at once (kernels/device.h, marks): 1 + the index of the
// action that is done, counted from the round's mark. The words lie in mapped memory, in cache lines of their own.
struct atsi_marks {
    int32_t *cpu, *gpu;
    void *cpu_dev, *gpu_dev;
    int32_t next; // the mark of the next round
};

// Everything that rounds under one assignment need. Made whole beside rounds, taken over between two of them.
struct atsi_prepared_round {
    struct atsi_device *device; // of graphs and events; NULL: CPU only
    struct atsi_script script;
    struct atsi_op_call *calls;   // [script.n_steps]
    struct atsi_call_part *parts; // [script.n_steps], used where a step is a part of an operation
    void **
        graphs; // [script.n_actions] single-token rounds of the runs of device actions that start there; NULL: launched
    struct atsi_script_cost cost;     // what its splits should take
    struct atsi_schedule_unit *units; // [n_units] that it was made of; NULL: nothing is known
    float *recent_us;                 // [script.n_actions] what they took lately (recorder.h)
    uint32_t n_tokens;                // of the rounds that it was made for
    struct atsi_launch
        ahead[2]; // the whole round of a single token, [1] with its runs timed; no pieces: launched run by run
    struct atsi_timed_run *timed;         // [script.n_actions]
    struct atsi_transfer_plan *transfers; // NULL: nothing is prefetched
    char *fetched; // where experts are fetched ahead (schedule/hits.h): the temporary region; NULL: nowhere
};

struct atsi_executor {
    const struct atsi_plan *plan;
    const struct atsi_program *p;
    uint32_t n_ctx;
    struct atsi_pool *pool;
    struct atsi_cpu *cpu;
    struct atsi_device *device; // NULL: CPU only
    struct atsi_stream *stream;
    struct atsi_event *arrived;
    struct atsi_side sides[2];
    void *host_compute_dev; // device address of the CPU's compute region
    void **host_states;     // [n_states] host blocks, NULL where the state is on the device
    void **device_states;   // [n_states]
    bool states_placed;
    struct atsi_staging staging;
    struct atsi_marks marks;
    struct atsi_launcher *launcher;    // of rounds that are launched at once; NULL: none may be
    struct atsi_prepared_round *now;   // the coming rounds'; NULL before the first assignment
    struct atsi_stream *capture;       // only records graphs, in whichever thread prepares; NULL: the device has none
    enum atsi_backend *backends;       // [n_units] of the first assignment: units with states stay there
    const void *const *mapped;         // [n_tensors]
    struct atsi_pinned_ring *ring;     // NULL: what is not mapped cannot be prefetched
    struct atsi_transfers *transfers;  // NULL without a temporary region
    struct atsi_round *round;          // in staging
    struct atsi_recorder recorders[2]; // [phase]: rounds of more tokens, rounds of one
    bool no_overlap;
    bool times_device; // events are recorded in this round
    struct atsi_trace *trace;
    struct atsi_routing *routing; // NULL: experts are not counted
    struct atsi_event *round_began;
    double round_began_us, transfers_traced_us; // up to where the lane of transfers is
    double waits_us, transfer_waits_us;         // of the host in this round; of them, for what has transfers before it
    uint64_t host_bytes;
};

// Gives every state its memory, on the side of x->backends. Once, before the first round.
enum atsi_status executor_place_states(struct atsi_executor *x, struct atsi_error *err);
// Launches actions [first, first + n) of a prepared round, all of them CROSS or GPU, into `stream`; `round` sizes them.
enum atsi_status executor_enqueue(const struct atsi_executor *x, const struct atsi_prepared_round *p,
                                  struct atsi_stream *stream, const struct atsi_round *round, uint32_t first,
                                  uint32_t n, struct atsi_error *err);

// The device reads the round's numbers from its own memory; the copy is ordered before every launch of the round.
enum atsi_status executor_publish_round(const struct atsi_executor *x, struct atsi_stream *stream,
                                        struct atsi_error *err);
void executor_run_cpu(struct atsi_executor *x, const struct atsi_action *a);
// Host action `i` has just ended: tells the recorder and the trace.
void executor_note_host(struct atsi_executor *x, uint32_t i, double started_us);

// executor_ahead.c: whether a script's rounds can be launched at once; recording such a round of one token and one output into
// p->ahead; running it as x->now.
bool executor_can_run_ahead(const struct atsi_executor *x, const struct atsi_script *s);
enum atsi_status executor_record_ahead(const struct atsi_executor *x, struct atsi_prepared_round *p,
                                       struct atsi_error *err);
void executor_free_ahead(struct atsi_device *device, struct atsi_launch *round);
enum atsi_status executor_run_ahead(struct atsi_executor *x, struct atsi_error *err);

#endif
