#include "runtime/temp_ring.h"

static bool is_listed(const struct atsi_travelling_tensor *tensors, uint32_t n, uint32_t tensor) {
    for (uint32_t i = 0; i < n; i++)
        if (tensors[i].tensor == tensor) return true;
    return false;
}

uint32_t atsi_temp_ring_list(const struct atsi_program *p, const struct atsi_unit *u,
                             struct atsi_travelling_tensor tensors[ATSI_TRAVELLING_TENSORS], uint64_t *bytes) {
    uint32_t n = 0, cursor = 0, t;
    *bytes = 0;
    while (n < ATSI_TRAVELLING_TENSORS && atsi_unit_next_big_tensor(p, u, &cursor, &t)) {
        if (is_listed(tensors, n, t)) continue;
        tensors[n++] = (struct atsi_travelling_tensor){t, *bytes};
        *bytes += atsi_aligned(p->tensors[t].size_bytes);
    }
    return n;
}

static bool overlap(const struct atsi_temp_slot *a, const struct atsi_temp_slot *b) {
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

enum atsi_status atsi_temp_ring_plan(const uint64_t *bytes, uint32_t n, uint64_t capacity, struct atsi_temp_slot *slots,
                                     struct atsi_error *err) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t size = atsi_aligned(bytes[i]);
        if (size < bytes[i] || size > capacity)
            return atsi_fail(err, ATSI_FAILED, "a unit of %llu bytes does not fit the temporary region of %llu",
                             (unsigned long long)bytes[i], (unsigned long long)capacity);
        if (size > capacity - at) at = 0;
        slots[i] = (struct atsi_temp_slot){.offset = at, .bytes = size};
        at += size;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t back = 1;
        while (back < n && !overlap(&slots[i], &slots[(i + n - back) % n])) back++;
        slots[i].waits_for = back;
    }
    return ATSI_OK;
}
