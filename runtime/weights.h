// weights.h: where a plan's tensors are in memory: the mapped file, pinned or unpacked copies, the GPU's resident range. Residency
// can change between rounds: units leave the GPU when the card is short of memory and come back later (runtime/reserve.h).
#ifndef ATSI_RUNTIME_WEIGHTS_H
#define ATSI_RUNTIME_WEIGHTS_H

#include "runtime/model.h"
#include "runtime/pinned_ring.h"
#include "runtime/resident.h"
#include "runtime/upload.h"

// How the host's part of the weights can be reached by the device.
enum atsi_host_memory {
    ATSI_HOST_REGISTERED = 0, // the mapped file itself is pinned
    ATSI_HOST_COPIED = 1,     // copied to a pinned allocation
    ATSI_HOST_PARTLY = 2,     // some of it is pinned in one of these ways, the rest is not
    ATSI_HOST_PLAIN = 3       // nothing is pinned
};

// Loading, and of it: memory of the card, reading and copying to it, mapping what stays, pinning that.
struct atsi_load_times {
    double all_us, room_us, upload_us, map_us, pin_us;
    struct atsi_upload_times upload;
    uint32_t n_threads;
};

struct atsi_weights {
    const void **host;   // [n_tensors]; NULL for tensors that only the device reads
    const void **device; // [n_tensors]; NULL for tensors that are neither resident nor small
    const void *
        *mapped; // [n_tensors] device addresses of host tensors in pinned memory; NULL where they are not pinned
    enum atsi_backend *homes;  // [n_units] where units are now; the plan's placement as far as the card has room
    bool *host_reads;          // [n_tensors] a unit on the CPU reads it, or it is small
    enum atsi_travel *travel;  // [n_units] how those on the CPU get to the device
    struct atsi_device *owner; // of the resident range, NULL without a device
    const struct atsi_model *model;
    struct atsi_experts experts;   // resident one by one
    struct atsi_resident resident; // what stands where in the range
    struct atsi_range *range;
    uint32_t n_resident;   // items of `resident` that are on the GPU now
    uint64_t filled_bytes; // of the range that hold their tensors: more than the resident items' while others come back
    uint64_t resident_bytes, unpacked_bytes,
        host_bytes;           // of the tensors on each side; unpacked: copies beside the mapping
    void **unpacked;          // [n_tensors] heap or pinned memory
    bool *unpacked_is_pinned; // [n_tensors]
    struct atsi_pinned pinned_memory;
    struct atsi_pinned_ring
        *ring; // for what could not be pinned at the start; NULL: all could, or there is no memory for it
    struct atsi_upload upload;
    enum atsi_host_memory host_memory;
    uint64_t pinned_bytes;      // of the tensors that the host reads and the device reaches
    bool tried_to_pin_resident; // the file's resident section, for units that leave the GPU
    struct atsi_load_times times;
    uint32_t n_tensors;
};

// Told of bytes brought into memory, from one thread at a time. False ends the loading.
typedef bool atsi_load_progress(void *context, uint64_t done_bytes, uint64_t total_bytes);

struct atsi_weights_params {
    const struct atsi_model *model; // outlives the weights
    struct atsi_device *device;     // NULL: everything on the CPU
    uint64_t beside_bytes;          // of device memory that the run takes beside the weights, once they are loaded
    uint64_t beside_host_bytes;     // the same of pinned memory
    uint64_t reserve_bytes;         // of the card that are to stay free
    bool strict;                    // a card with too little free memory for the plan is an error
    atsi_load_progress *progress;   // may be NULL
    void *context;
};

// Loads the tensors for the plan's placement: those of CPU units are mapped and faulted in (or unpacked when they are stored
// compressed), those of GPU units are copied to the device. A card with too little free memory keeps the most valuable items that
// fit (n_resident < resident.n_items), the others run on the CPU; ATSI_FAILED with the numbers when not even what has to be there fits.
// Zeroes *w first; free with atsi_weights_free whether it succeeds or not. ATSI_INTERRUPTED when `progress` wants no more.
enum atsi_status atsi_weights_load(struct atsi_weights *w, const struct atsi_weights_params *params,
                                   struct atsi_error *err);
void atsi_weights_free(struct atsi_weights *w);

// Units that the plan has on the GPU and that did not fit the card, as one line with the command that plans for it. Empty when all fit.
void atsi_weights_describe_cut(const struct atsi_weights *w, char *text, size_t cap);
// Pinned memory that could not be had the usual way and what that costs, as one line. Empty when all is well.
void atsi_weights_describe_pinning(const struct atsi_weights *w, char *text, size_t cap);

// ---- between rounds: the arrays above change, and the executor needs a new assignment before its next round ----------------
// Only the first n_keep items stay (n_keep <= n_resident): the others' tensors are on the host when this returns, and the memory is the
// card's again. More stay when the host has no memory for what is stored compressed.
enum atsi_status atsi_weights_release(struct atsi_weights *w, uint32_t n_keep, struct atsi_error *err);
// Brings what belongs to the items up to n_target back, chunk by chunk (the range has them) until the time is up, at least one. *refused: the
// card had no room for the next chunk. Nothing else changes before atsi_weights_settle.
enum atsi_status atsi_weights_refill(struct atsi_weights *w, uint32_t n_target, double until_us, bool *refused,
                                     struct atsi_error *err);
// Items of which everything has come back are resident again; memory behind the last one is given back.
enum atsi_status atsi_weights_settle(struct atsi_weights *w, struct atsi_error *err);

#endif
