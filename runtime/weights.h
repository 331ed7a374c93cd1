// weights.h: where a plan's tensors are in memory: the mapped file, unpacked copies, the GPU's resident region.
#ifndef ATSI_RUNTIME_WEIGHTS_H
#define ATSI_RUNTIME_WEIGHTS_H

#include "kernels/device.h"
#include "runtime/model.h"

struct atsi_weights {
    const void **host;   // [n_tensors]; NULL for tensors that only the device reads
    const void **device; // [n_tensors]; NULL for tensors that are neither resident nor small
    const void *
        *mapped; // [n_tensors] device addresses of host tensors in pinned memory; NULL where they are not pinned
    struct atsi_device *owner; // of the resident region, NULL without a device
    void *resident;
    uint64_t resident_bytes, unpacked_bytes,
        host_bytes;            // of the tensors on each side; unpacked: copies beside the mapping
    void **unpacked;           // [n_tensors] heap or pinned memory
    const void *registered[2]; // sections of the mapped plan file that are registered with the device
    bool pinned;               // every big host tensor has a mapped address, so that weights can travel each round
    uint32_t n_tensors;
};

// Told of bytes brought into memory, from one thread. False ends the loading.
typedef bool atsi_load_progress(void *context, uint64_t done_bytes, uint64_t total_bytes);

// Loads the tensors for `backends` [n_units]: those of CPU units are mapped and faulted in (or unpacked when they are stored
// compressed), those of GPU units are copied to `device`. device NULL: everything on the CPU. Zeroes *w first; free with
// atsi_weights_free whether it succeeds or not. ATSI_INTERRUPTED when `progress` (may be NULL) wants no more.
enum atsi_status atsi_weights_load(struct atsi_weights *w, const struct atsi_model *model,
                                   const enum atsi_backend *backends, struct atsi_device *device,
                                   atsi_load_progress *progress, void *context, struct atsi_error *err);
void atsi_weights_free(struct atsi_weights *w);

#endif
