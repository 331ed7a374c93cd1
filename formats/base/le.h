// le.h: little-endian numbers at any address, on any machine.
#ifndef ATSI_FORMATS_BASE_LE_H
#define ATSI_FORMATS_BASE_LE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t atsi_load_le16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return le16toh(v);
}

static inline uint32_t atsi_load_le32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static inline uint64_t atsi_load_le64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

static inline void atsi_store_le32(void *p, uint32_t v) {
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}

static inline void atsi_store_le64(void *p, uint64_t v) {
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

#endif
