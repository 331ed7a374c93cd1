#include "formats/base/hash.h"

#include <xxhash.h>

// struct atsi_hasher is never defined: it is the library's state under a name of ours.
static XXH3_state_t *state_of(struct atsi_hasher *hasher) { return (XXH3_state_t *)hasher; }

uint64_t atsi_hash(const void *data, uint64_t size_bytes) { return XXH3_64bits(data, (size_t)size_bytes); }

enum atsi_status atsi_hasher_new(struct atsi_hasher **out, struct atsi_error *err) {
    *out = (struct atsi_hasher *)XXH3_createState();
    if (!*out) return atsi_out_of_memory(err);
    atsi_hasher_reset(*out);
    return ATSI_OK;
}

void atsi_hasher_reset(struct atsi_hasher *hasher) { XXH3_64bits_reset(state_of(hasher)); }

void atsi_hasher_update(struct atsi_hasher *hasher, const void *data, uint64_t size_bytes) {
    XXH3_64bits_update(state_of(hasher), data, (size_t)size_bytes);
}

uint64_t atsi_hasher_digest(const struct atsi_hasher *hasher) {
    return XXH3_64bits_digest((const XXH3_state_t *)hasher);
}

void atsi_hasher_free(struct atsi_hasher *hasher) { XXH3_freeState(state_of(hasher)); }
