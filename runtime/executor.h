// executor.h: runs rounds of a program on the CPU and, where a plan places units on it, a device.
//
// An executor owns what a round touches beside the weights: the compute region of each side, the states, the round data. An
// assignment (one backend a unit) becomes a script (script.h): what runs on which side, and the activations that have to cross
// before it. Rounds under an assignment allocate nothing.
#ifndef ATSI_RUNTIME_EXECUTOR_H
#define ATSI_RUNTIME_EXECUTOR_H

#include <pthread.h>

#include "formats/plan.h"
#include "kernels/cpu/ops.h"
#include "kernels/device.h"
#include "runtime/pinned_ring.h"
#include "runtime/recorder.h"
#include "runtime/routing.h"
#include "runtime/schedule/script_cost.h"
#include "runtime/trace.h"

struct atsi_executor;

struct atsi_executor_params {
    const struct atsi_plan *plan;    // borrowed, outlives the executor
    const void *const *host_tensors; // [n_tensors] host addresses; NULL entries only for tensors that no CPU unit reads
    const void *const
        *device_tensors; // [n_tensors] device addresses of resident and small tensors; NULL without a device
    const void *const *mapped_tensors; // [n_tensors] device addresses of the host tensors; NULL without a device
    // [n_units] what calls of a unit get of experts that are resident one by one; both NULL: there are none
    const struct atsi_experts_ref *host_experts, *device_experts;
    struct atsi_pinned_ring *ring; // for weights without such an address; NULL: they cannot be prefetched; borrowed
    uint32_t n_ctx;                // positions, at most the plan's
    int n_threads;                 // 0: the plan's, else the default
    const char *isa;               // NULL: the best
    struct atsi_device *device;    // NULL: CPU only; borrowed
    bool no_overlap;               // for comparison: everything waits for everything before it
    bool no_repeats;               // for comparison: the CPU's threads wait for one that has lost its core
    struct atsi_trace *trace;      // NULL: none; borrowed. Tracing adds two events to every run of device work
    struct atsi_routing *routing;  // NULL: experts are not counted; borrowed
};

enum atsi_status atsi_executor_create(const struct atsi_executor_params *params, struct atsi_executor **out,
                                      struct atsi_error *err);
void atsi_executor_free(struct atsi_executor *x); // NULL fine

// How a unit that is not resident runs on the GPU.
enum atsi_promotion {
    ATSI_NOT_PROMOTED = 0,
    ATSI_PREFETCHED = 1, // its weights travel to the temporary region ahead of it, each round
    ATSI_IN_PLACE = 2    // its kernels read pinned host memory over the link (experts: only those that were chosen)
};

// Where each unit runs in the coming rounds.
struct atsi_assignment {
    const enum atsi_backend *backends;     // [n_units]
    const enum atsi_promotion *promotions; // [n_units]; NULL: none
    const float *gpu_share; // [n_units] of CPU units: the part that the GPU computes in place beside it; NULL: none
    // [n_units] at the units that hold a router: how slots are divided token by token (runtime/schedule/script.h); NULL: nowhere
    const struct atsi_slot_division *divisions;
    uint32_t n_tokens; // of the coming rounds; 1: launches are captured. Only such rounds are recorded
    // [n_units] experts resident one by one, as in a plan: for what rounds should take. Read while it is prepared; NULL: none.
    struct atsi_resident_experts *residents;
};
// Units on the GPU that are not promoted need their tensors in device_tensors, promoted ones in mapped_tensors, or the pinned ring and to be
// prefetched; a unit with a state stays where it was when the first assignment was made (its state lives there). Units of the output head cannot be prefetched;
// units that cannot be shared (atsi_script_can_share) ignore their share. Rounds of several tokens bring what is not resident when they
// are prepared: once other experts are resident, they have to be prepared anew.

// Everything that rounds under an assignment need: the script (runtime/schedule/script.h), its calls, the places of what is prefetched, captured
// launches. The first one is made while nothing else uses the executor; later ones may be made in another thread
// while rounds run, one at a time.
struct atsi_prepared_round;
enum atsi_status atsi_executor_prepare(struct atsi_executor *x, const struct atsi_assignment *assignment,
                                       struct atsi_prepared_round **out, struct atsi_error *err);
void atsi_prepared_round_free(struct atsi_prepared_round *p); // NULL fine; in any thread, before the executor
// Between rounds: the coming ones run as prepared. Takes `prepared` over and gives back the one before (NULL at first), for the caller to
// free. Waits for nothing.
enum atsi_status atsi_executor_adopt(struct atsi_executor *x, struct atsi_prepared_round *prepared,
                                     struct atsi_prepared_round **old, struct atsi_error *err);
// What the prepared round should take at these speeds (script_cost.h); 0: the plan has no times.
double atsi_prepared_round_time(const struct atsi_prepared_round *p, const struct atsi_scales *scales);
// Of its rounds: bytes of weights that cross the link, what the device was busy for lately (0: not timed yet), and hand-overs.
struct atsi_round_figures {
    double link_bytes, device_us;
    uint32_t n_handovers; // there and back whenever the host waits for the device
};
// A round of one token took so long from one token to the next: for the recorder (recorder.h), with what it waited for transfers.
void atsi_executor_note_round(struct atsi_executor *x, double round_us);
// The factors of single units as its rounds showed them at these speeds (script_cost.h); others are left alone.
void atsi_executor_unit_factors(const struct atsi_executor *x, const struct atsi_scales *scales,
                                struct atsi_unit_factors *factors);
// What rounds under an assignment should take at these speeds, without preparing them.
enum atsi_status atsi_executor_forecast(struct atsi_executor *x, const struct atsi_assignment *assignment,
                                        const struct atsi_scales *scales, double *round_us, struct atsi_error *err);
// The times that rounds at work should take, for other residents; of rounds of one token. Between rounds; allocates nothing.
void atsi_executor_reprice(struct atsi_executor *x, struct atsi_resident_experts *residents);
struct atsi_round_figures atsi_prepared_round_figures(const struct atsi_prepared_round *p);
// Waits until nothing that rounds have started is under way: addresses that they use may change then.
enum atsi_status atsi_executor_settle(struct atsi_executor *x, struct atsi_error *err);
// Between rounds: a copy to the device ahead of all work of the coming ones. `host` is pinned and stays as it is until the next round is over.
enum atsi_status atsi_executor_copy(struct atsi_executor *x, void *dev, const void *host, uint64_t bytes,
                                    struct atsi_error *err);
// Prepares and adopts at once.
enum atsi_status atsi_executor_assign(struct atsi_executor *x, const struct atsi_assignment *assignment,
                                      struct atsi_error *err);

bool atsi_executor_has_device(const struct atsi_executor *x);

// One round: n_tokens (1..chunk) token ids (< n_vocab) at positions first_pos…; output_rows names the token rows whose logits
// are wanted (any number; computed in groups of limits.n_outputs). For each group on_logits receives the rows, which stand until the next
// group or round, or until the states are reset.
typedef void atsi_on_logits(void *context, const float *logits, uint32_t first_output, uint32_t n_outputs);
struct atsi_round_request {
    const int32_t *token_ids;
    uint32_t n_tokens, first_pos;
    const int32_t *output_rows;
    uint32_t n_outputs;
    atsi_on_logits *on_logits; // may be NULL when n_outputs is 0
    void *context;
};
enum atsi_status atsi_executor_round(struct atsi_executor *x, const struct atsi_round_request *request,
                                     struct atsi_error *err);

// What recent rounds of one token took, or those of more. Kept up to date with a device alone.
struct atsi_recorder *atsi_executor_recorder(struct atsi_executor *x, bool single_tokens);

// Forgets every state (a new text begins).
enum atsi_status atsi_executor_reset(struct atsi_executor *x, struct atsi_error *err);

// Re-runs the last round on the CPU op by op and names the unit whose output is first not finite, "" when none is. For the
// error message after bad logits; states are spoilt by it.
void atsi_executor_blame(struct atsi_executor *x, char *unit_name, size_t cap);

// Bytes this executor holds on the host, and hand-overs to the CPU in a round of the current assignment, for statistics.
uint64_t atsi_executor_host_bytes(const struct atsi_executor *x);
uint32_t atsi_executor_n_handovers(const struct atsi_executor *x);
// Routers behind which slots are divided token by token at present, and those whose last operations the GPU computes (schedule/hits.h).
struct atsi_divided_routers {
    uint32_t n, n_last_on_gpu;
};
struct atsi_divided_routers atsi_executor_divided_routers(const struct atsi_executor *x);
const char *atsi_executor_isa(const struct atsi_executor *x);
int atsi_executor_n_threads(const struct atsi_executor *x);
struct atsi_pool_crowding atsi_executor_crowding(const struct atsi_executor *x);
// Keeps another thread off the core of the one that runs the rounds.
void atsi_executor_keep_off(const struct atsi_executor *x, pthread_t thread);
uint32_t atsi_executor_n_units(const struct atsi_executor *x);

#endif
