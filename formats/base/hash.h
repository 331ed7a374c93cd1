// hash.h: XXH3-64, the checksum of the plan file and the identity of models. Not a defence against forgery.
#ifndef ATSI_FORMATS_BASE_HASH_H
#define ATSI_FORMATS_BASE_HASH_H

#include <stdint.h>

#include "formats/base/error.h"

uint64_t atsi_hash(const void *data, uint64_t size_bytes);

// The same hash over pieces. One thread at a time.
struct atsi_hasher;
enum atsi_status atsi_hasher_new(struct atsi_hasher **out, struct atsi_error *err);
void atsi_hasher_reset(struct atsi_hasher *hasher);
void atsi_hasher_update(struct atsi_hasher *hasher, const void *data, uint64_t size_bytes);
uint64_t atsi_hasher_digest(const struct atsi_hasher *hasher);
void atsi_hasher_free(struct atsi_hasher *hasher); // NULL is fine

#endif
