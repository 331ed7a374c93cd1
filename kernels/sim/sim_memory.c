// Memory of the simulated device: blocks, their device addresses, and the check of every address that comes back.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/base/checked.h"
#include "formats/base/grow.h"
#include "kernels/sim/sim_internal.h"

// Set in every device address. No user address of x86-64 (47 or 56 bits) that is mapped or of AArch64 (48 or 52 bits) has it.
static const uintptr_t DEVICE_BIT = (uintptr_t)1 << 54;
enum {
    ALIGNMENT = 256
};

void *sim_device_address(const void *host) { return (void *)((uintptr_t)host | DEVICE_BIT); }

static bool is_on_card(enum sim_block_kind kind) { return kind == SIM_DEVICE_MEMORY || kind == SIM_RANGE_MEMORY; }

// The block that holds bytes of host memory, lock held; NULL when there is none.
static struct sim_block *find_block(struct sim_device *d, uintptr_t host, uint64_t bytes) {
    for (uint32_t i = 0; i < d->n_blocks; i++) {
        struct sim_block *block = &d->blocks[i];
        uintptr_t start = (uintptr_t)block->start;
        if (host >= start && host - start <= block->bytes && bytes <= block->bytes - (host - start)) return block;
    }
    return NULL;
}

enum atsi_status sim_translate(struct sim_device *d, const void *dev, uint64_t bytes, bool write, void **host,
                               struct atsi_error *err) {
    uintptr_t address = (uintptr_t)dev;
    *host = NULL;
    if ((address & DEVICE_BIT) == 0)
        return atsi_fail(err, ATSI_FAILED, "simulated device: %p is no device address", dev);
    pthread_mutex_lock(&d->lock);
    const struct sim_block *block = find_block(d, address & ~DEVICE_BIT, bytes);
    bool read_only = block != NULL && block->kind == SIM_REGISTERED_MEMORY;
    pthread_mutex_unlock(&d->lock);
    if (block == NULL)
        return atsi_fail(err, ATSI_FAILED, "simulated device: %llu bytes at %p are not inside one block of its memory",
                         (unsigned long long)bytes, dev);
    if (write && read_only)
        return atsi_fail(err, ATSI_FAILED, "simulated device: write to read-only registered memory at %p", dev);
    *host = (void *)(address & ~DEVICE_BIT);
    return ATSI_OK;
}

void sim_resize_block(struct sim_device *d, const void *start, uint64_t bytes) {
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_blocks; i++) {
        if (d->blocks[i].start != start || d->blocks[i].kind != SIM_RANGE_MEMORY) continue;
        d->used_bytes = d->used_bytes - d->blocks[i].bytes + bytes;
        d->blocks[i].bytes = bytes;
    }
    pthread_mutex_unlock(&d->lock);
}

bool sim_is_pinned(struct sim_device *d, const void *host, uint64_t bytes) {
    pthread_mutex_lock(&d->lock);
    const struct sim_block *block = find_block(d, (uintptr_t)host, bytes);
    bool pinned = block != NULL && !is_on_card(block->kind);
    pthread_mutex_unlock(&d->lock);
    return pinned;
}

enum atsi_status sim_add_block(struct sim_device *d, void *start, uint64_t bytes, enum sim_block_kind kind,
                               struct atsi_error *err) {
    enum atsi_status status = ATSI_OK;
    pthread_mutex_lock(&d->lock);
    if (!atsi_grow((void **)&d->blocks, d->n_blocks, &d->blocks_cap, sizeof *d->blocks))
        status = atsi_fail(err, ATSI_FAILED, "out of memory for the simulated device's list of blocks");
    if (status == ATSI_OK) d->blocks[d->n_blocks++] = (struct sim_block){.start = start, .bytes = bytes, .kind = kind};
    if (status == ATSI_OK && is_on_card(kind)) d->used_bytes += bytes;
    if (status == ATSI_OK && kind == SIM_MAPPED_MEMORY) d->pinned_bytes += bytes;
    pthread_mutex_unlock(&d->lock);
    return status;
}

bool sim_remove_block(struct sim_device *d, const void *start, enum sim_block_kind kind) {
    bool found = false;
    sim_drain_all(d);
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_blocks && !found; i++) {
        struct sim_block *block = &d->blocks[i];
        if (block->start != start || block->kind != kind) continue;
        if (is_on_card(kind)) d->used_bytes -= block->bytes;
        if (kind == SIM_MAPPED_MEMORY) d->pinned_bytes -= block->bytes;
        *block = d->blocks[--d->n_blocks];
        found = true;
    }
    pthread_mutex_unlock(&d->lock);
    if (!found) {
        struct atsi_error failure;
        atsi_fail(&failure, ATSI_FAILED, "simulated device: free of %p, which is no live block of this kind", start);
        sim_poison(d, &failure, NULL);
    }
    return found;
}

// A block of its own, filled with NaNs.
static enum atsi_status new_block(struct sim_device *d, uint64_t bytes, enum sim_block_kind kind, void **host,
                                  struct atsi_error *err) {
    uint64_t rounded;
    *host = NULL;
    if (atsi_align_u64(bytes != 0 ? bytes : 1, ALIGNMENT, &rounded) && rounded <= SIZE_MAX / 2)
        *host = aligned_alloc(ALIGNMENT, (size_t)rounded);
    if (*host == NULL)
        return atsi_fail(err, ATSI_FAILED, "out of host memory for %llu bytes of the simulated device",
                         (unsigned long long)bytes);
    memset(*host, 0xff, (size_t)rounded);
    enum atsi_status status = sim_add_block(d, *host, rounded, kind, err);
    if (status != ATSI_OK) free(*host);
    return status;
}

// Memory that others hold on top of what fits is as good as none left.
static uint64_t free_on_card(const struct sim_device *d) {
    uint64_t taken = d->params.taken_bytes != NULL ? d->params.taken_bytes(d->params.taken_context) : 0;
    uint64_t card = d->params.card_bytes != 0 ? d->params.card_bytes : d->params.memory_bytes;
    return card > d->used_bytes && card - d->used_bytes > taken ? card - d->used_bytes - taken : 0;
}

uint64_t sim_room(const struct sim_device *d) {
    uint64_t of_card = free_on_card(d), of_limit = d->params.memory_bytes - d->used_bytes;
    return of_card < of_limit ? of_card : of_limit;
}

enum atsi_status sim_free_bytes(struct atsi_device *device, uint64_t *bytes, struct atsi_error *err) {
    struct sim_device *d = sim_of(device);
    *bytes = 0;
    ATSI_TRY(sim_state(d, err));
    *bytes = free_on_card(d);
    return ATSI_OK;
}

enum atsi_status sim_no_room(const struct sim_device *d, uint64_t bytes, struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "simulated device: no room for %llu bytes, %llu of %llu are left",
                     (unsigned long long)bytes, (unsigned long long)sim_room(d),
                     (unsigned long long)d->params.memory_bytes);
}

enum atsi_status sim_alloc(struct atsi_device *device, uint64_t bytes, void **dev, struct atsi_error *err) {
    struct sim_device *d = sim_of(device);
    uint64_t rounded;
    void *host;
    *dev = NULL;
    ATSI_TRY(sim_state(d, err));
    if (!atsi_align_u64(bytes, ALIGNMENT, &rounded) || rounded > sim_room(d)) return sim_no_room(d, bytes, err);
    ATSI_TRY(new_block(d, bytes, SIM_DEVICE_MEMORY, &host, err));
    *dev = sim_device_address(host);
    return ATSI_OK;
}

void sim_free(struct atsi_device *device, void *dev) {
    void *host = (void *)((uintptr_t)dev & ~DEVICE_BIT);
    if (dev != NULL && sim_remove_block(sim_of(device), host, SIM_DEVICE_MEMORY)) free(host);
}

enum atsi_status sim_host_alloc(struct atsi_device *device, uint64_t bytes, void **host, void **dev,
                                struct atsi_error *err) {
    struct sim_device *d = sim_of(device);
    *host = *dev = NULL;
    ATSI_TRY(sim_state(d, err));
    uint64_t limit = d->params.pinned_bytes;
    if (limit != 0 && (d->pinned_bytes > limit || bytes > limit - d->pinned_bytes))
        return atsi_fail(err, ATSI_FAILED, "simulated device: %llu bytes more than the %llu that can be pinned",
                         (unsigned long long)bytes, (unsigned long long)limit);
    ATSI_TRY(new_block(d, bytes, SIM_MAPPED_MEMORY, host, err));
    *dev = sim_device_address(*host);
    return ATSI_OK;
}

void sim_host_free(struct atsi_device *device, void *host) {
    if (host != NULL && sim_remove_block(sim_of(device), host, SIM_MAPPED_MEMORY)) free(host);
}

enum atsi_status sim_host_register(struct atsi_device *device, const void *host, uint64_t bytes, const void **dev,
                                   struct atsi_error *err) {
    struct sim_device *d = sim_of(device);
    *dev = NULL;
    ATSI_TRY(sim_state(d, err));
    if (d->params.refuse_register)
        return atsi_fail(err, ATSI_FAILED, "simulated device: registering host memory is refused");
    if ((uintptr_t)host % (uintptr_t)sysconf(_SC_PAGESIZE) != 0 || bytes == 0)
        return atsi_fail(err, ATSI_FAILED, "simulated device: %p is not page aligned, it cannot be registered", host);
    pthread_mutex_lock(&d->lock);
    bool known = false;
    for (uint32_t i = 0; i < d->n_blocks; i++) {
        uintptr_t start = (uintptr_t)d->blocks[i].start;
        known |= start < (uintptr_t)host + bytes && (uintptr_t)host < start + d->blocks[i].bytes;
    }
    pthread_mutex_unlock(&d->lock);
    if (known) return atsi_fail(err, ATSI_FAILED, "simulated device: memory at %p is registered already", host);
    ATSI_TRY(sim_add_block(d, (void *)(uintptr_t)host, bytes, SIM_REGISTERED_MEMORY, err));
    *dev = sim_device_address(host);
    return ATSI_OK;
}

void sim_host_unregister(struct atsi_device *device, const void *host) {
    if (host != NULL) sim_remove_block(sim_of(device), host, SIM_REGISTERED_MEMORY);
}

void sim_free_all(struct sim_device *d) {
    sim_destroy_ranges(d);
    for (uint32_t i = 0; i < d->n_blocks; i++)
        if (d->blocks[i].kind != SIM_REGISTERED_MEMORY) free(d->blocks[i].start);
    free(d->blocks);
    d->blocks = NULL;
    d->n_blocks = 0;
    d->blocks_cap = 0;
}
