// unpack.h: a plan that was compressed for transport (`atsi-plan --ship`) is written once more, beside itself, in the form
// that can be mapped; later runs find it there.
#ifndef ATSI_RUNTIME_UNPACK_H
#define ATSI_RUNTIME_UNPACK_H

#include <signal.h>

#include "runtime/model.h"
#include "runtime/weights.h"

struct atsi_unpack_params {
    const char *path;                         // of the plan that *model was opened from
    uint32_t n_threads;                       // 0 counts as 1
    atsi_load_progress *progress;             // NULL fine
    void *context;                            // of progress
    const volatile sig_atomic_t *interrupted; // looked at between tensors: ATSI_INTERRUPTED, and no file is left
};

// Opens the unpacked plan in the place of *model, which is shipped, and writes it first unless a plan with the same manifest
// stands there; *wrote says which. Every tensor's checksum is verified on the way; ATSI_BAD_INPUT names a damaged one. ATSI_FAILED: it cannot be written
// (read-only folder, full disk). After a failure *model is as it was, and still runs: tensors are then unpacked into memory at each start.
enum atsi_status atsi_unpack_model(struct atsi_model *model, const struct atsi_unpack_params *params, bool *wrote,
                                   struct atsi_error *err);

#endif
