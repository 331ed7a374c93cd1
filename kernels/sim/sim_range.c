// Ranges of the simulated device: reserved addresses whose beginning is memory. What is not backed faults for every thread, so a
// kernel or copy that still uses memory that was given back ends the program.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "formats/base/checked.h"
#include "kernels/sim/sim_internal.h"

struct sim_range {
    struct atsi_range base;
    struct sim_range *next;
    uint8_t *start; // host address
};

enum {
    DEFAULT_CHUNK_BYTES = 256 << 10
};

static struct sim_range *range_of(struct atsi_range *r) { return (struct sim_range *)r; }

enum atsi_status sim_range_create(struct atsi_device *device, uint64_t bytes, struct atsi_range **out,
                                  struct atsi_error *err) {
    struct sim_device *d = sim_of(device);
    uint64_t chunk = d->params.chunk_bytes != 0 ? d->params.chunk_bytes : DEFAULT_CHUNK_BYTES, size;
    *out = NULL;
    ATSI_TRY(sim_state(d, err));
    if (!atsi_align_u64(bytes != 0 ? bytes : 1, chunk, &size) || size > SIZE_MAX / 2)
        return atsi_fail(err, ATSI_FAILED, "simulated device: a range of %llu bytes", (unsigned long long)bytes);
    struct sim_range *r = calloc(1, sizeof *r);
    void *start = mmap(NULL, (size_t)size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    enum atsi_status status = r != NULL && start != MAP_FAILED
                                  ? sim_add_block(d, start, 0, SIM_RANGE_MEMORY, err)
                                  : atsi_fail(err, ATSI_FAILED, "out of memory for a range of the simulated device");
    if (status != ATSI_OK) {
        if (start != MAP_FAILED) munmap(start, (size_t)size);
        free(r);
        return status;
    }
    *r = (struct sim_range){.base = {.dev = sim_device_address(start), .size_bytes = size, .chunk_bytes = chunk},
                            .next = d->ranges,
                            .start = start};
    d->ranges = r;
    *out = &r->base;
    return ATSI_OK;
}

// New chunks hold NaNs.
static enum atsi_status grow(struct sim_device *d, struct sim_range *r, uint64_t bytes, struct atsi_error *err) {
    while (r->base.backed_bytes < bytes) {
        uint8_t *chunk = r->start + r->base.backed_bytes;
        if (r->base.chunk_bytes > sim_room(d)) return sim_no_room(d, r->base.chunk_bytes, err);
        if (mprotect(chunk, (size_t)r->base.chunk_bytes, PROT_READ | PROT_WRITE) != 0)
            return atsi_fail(err, ATSI_FAILED, "out of host memory for a chunk of the simulated device");
        memset(chunk, 0xff, (size_t)r->base.chunk_bytes);
        r->base.backed_bytes += r->base.chunk_bytes;
        sim_resize_block(d, r->start, r->base.backed_bytes);
    }
    return ATSI_OK;
}

static enum atsi_status shrink(struct sim_device *d, struct sim_range *r, uint64_t bytes, struct atsi_error *err) {
    uint64_t gone = r->base.backed_bytes - bytes;
    sim_drain_all(d);
    if (madvise(r->start + bytes, (size_t)gone, MADV_DONTNEED) != 0 ||
        mprotect(r->start + bytes, (size_t)gone, PROT_NONE) != 0)
        return atsi_fail(err, ATSI_FAILED, "simulated device: a chunk cannot be given back");
    r->base.backed_bytes = bytes;
    sim_resize_block(d, r->start, bytes);
    return ATSI_OK;
}

enum atsi_status sim_range_back(struct atsi_device *device, struct atsi_range *range, uint64_t bytes,
                                struct atsi_error *err) {
    struct sim_device *d = sim_of(device);
    uint64_t wanted;
    ATSI_TRY(sim_state(d, err));
    if (!atsi_align_u64(bytes, range->chunk_bytes, &wanted) || wanted > range->size_bytes)
        return atsi_fail(err, ATSI_FAILED, "simulated device: %llu bytes of a range of %llu", (unsigned long long)bytes,
                         (unsigned long long)range->size_bytes);
    if (wanted > range->backed_bytes) return grow(d, range_of(range), wanted, err);
    return wanted < range->backed_bytes ? shrink(d, range_of(range), wanted, err) : ATSI_OK;
}

void sim_range_destroy(struct atsi_device *device, struct atsi_range *range) {
    struct sim_device *d = sim_of(device);
    if (range == NULL) return;
    struct sim_range *r = range_of(range), **at = &d->ranges;
    sim_remove_block(d, r->start, SIM_RANGE_MEMORY);
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    munmap(r->start, (size_t)r->base.size_bytes);
    free(r);
}

void sim_destroy_ranges(struct sim_device *d) {
    while (d->ranges != NULL) sim_range_destroy(&d->base, &d->ranges->base);
}
