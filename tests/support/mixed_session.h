// mixed_session.h: a session over model_file_open_mixed with everything that atsi-run has around it, on a simulated device or the CPU.
#ifndef ATSI_TESTS_SUPPORT_MIXED_SESSION_H
#define ATSI_TESTS_SUPPORT_MIXED_SESSION_H

#include "runtime/loaded.h"
#include "tests/support/model_file.h"

struct mixed_session {
    struct model_file file;
    struct atsi_device *device; // NULL: CPU only
    struct atsi_run_options options;
    struct atsi_loaded loaded; // its reserve is moved by the test: it looks at no memory
    struct atsi_error err;
};

// `device` is taken over, its memory comes in chunks; in_turn: decisions are made between rounds. Of `exchange` its limits count: part, sigmas,
// never, never_large.
void mixed_session_open(struct mixed_session *s, struct atsi_device *device, bool in_turn,
                        const struct atsi_exchange_params *exchange);
// Asserts that nothing is left on the device, and closes it.
void mixed_session_close(struct mixed_session *s);

#endif
