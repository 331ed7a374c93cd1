// script.h: a program and an assignment as the list of actions of a round (docs/architecture.md). Pure: no device, no memory.
//
// Units run one after another. A unit may be shared: its big matrix is divided by output columns (experts: by slots), the first
// part computed by the GPU while the CPU computes the rest; one of which the GPU computes everything runs there in place. Shared experts
// behind one router that stand behind each other are done as one. What a side reads and does not hold is copied there by a CROSS in the compute
// stream; the CPU waits for the stream only when it needs what a CROSS brings, or is about to overwrite what one still reads.
#ifndef ATSI_RUNTIME_SCHEDULE_SCRIPT_H
#define ATSI_RUNTIME_SCHEDULE_SCRIPT_H

#include "formats/program.h"
#include "runtime/schedule/hits.h"

enum atsi_action_kind {
    ATSI_ACTION_CROSS,   // copy columns of a buffer's rows to `backend`, in the compute stream
    ATSI_ACTION_GPU,     // launch steps [first, first + n) in the compute stream
    ATSI_ACTION_CPU,     // run steps [first, first + n) on the CPU
    ATSI_ACTION_RECORD,  // mark the compute stream
    ATSI_ACTION_WAIT,    // the CPU waits for the mark
    ATSI_ACTION_AWAIT,   // the compute stream waits for the next prefetched unit's weights
    ATSI_ACTION_CONSUMED // the compute stream has been given that unit's work
};

struct atsi_action {
    enum atsi_action_kind kind;
    enum atsi_backend backend;      // CROSS: where to
    uint32_t buffer, offset, width; // CROSS
    int32_t slots_of;  // CROSS: only those slots that the other side has computed, as this router's op divided them;
                       // ATSI_NONE: all columns
    uint32_t first, n; // GPU, CPU: steps
};

// One operation, or a part of it, on one side.
struct atsi_step {
    uint32_t op;
    enum atsi_backend backend;
    uint32_t begin, end; // columns of out[0]; a whole operation has all of them
    bool promoted;       // on the GPU, its unit's big tensors not resident
    bool by_token;       // of all columns only the slots that are its side's for the token at hand (divisions)
    bool fetches;        // computes nothing: brings the absent experts that its operation will read (divisions)
    bool fetched;        // reads them from there
};

struct atsi_script {
    struct atsi_step *steps;
    uint32_t n_steps;
    struct atsi_action *actions;
    uint32_t n_actions;
    uint32_t tail;                        // actions from here on are repeated for each group of output rows
    struct atsi_slot_division *divisions; // [n_units] at the units that hold a router; NULL: none
};

struct atsi_script_params {
    const struct atsi_program *program; // has passed atsi_program_check
    const enum atsi_backend *backends;  // [n_units]
    const bool *promoted;               // [n_units]; NULL: none
    const bool *prefetched;             // [n_units] of the promoted ones, those that wait for a transfer; NULL: none
    const float *gpu_share;             // [n_units] of CPU units, the part that the GPU computes beside it; NULL: none
    // [n_units] at the units that hold a router, on the GPU: how the slots of shared units behind it are divided token by token (their
    // share only says that they are shared); copied. NULL: by their shares.
    const struct atsi_slot_division *divisions;
    bool
        can_fetch; // there is a place for what a division has fetched ahead; else it is read over the link when its turn comes
    uint32_t n_tokens_max, n_outputs_max; // rows that buffers were placed for
};

// Whether a unit can be shared: a matrix or experts, without state, whose parts do not read each other's results.
bool atsi_script_can_share(const struct atsi_program *p, uint32_t i_unit);

// Free with atsi_script_free whether it succeeds or not.
enum atsi_status atsi_script_build(const struct atsi_script_params *params, struct atsi_script *out,
                                   struct atsi_error *err);
void atsi_script_free(struct atsi_script *s);

#endif
