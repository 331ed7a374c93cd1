// amx.h: what the kernels with AMX share. Included after simd_avx512.h.
#ifndef ATSI_KERNELS_CPU_AMX_H
#define ATSI_KERNELS_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum {
    AMX_TOKENS = 16 // rows of a register of inputs or of sums
};

// The compiler does not know what the instructions that load tiles read: all that is at `p` is in memory from here on.
INLINE void amx_write_out(const void *p) { __asm__ volatile("" ::"r"(p) : "memory"); }

// How much of the eight registers is used: rows, and bytes of a row.
struct amx_shapes {
    uint16_t row_bytes[8];
    uint8_t n_rows[8];
};

static inline void amx_configure(const struct amx_shapes *shapes) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t n_rows[16];
    } __attribute__((aligned(64))) config = {.palette = 1};
    memcpy(config.row_bytes, shapes->row_bytes, sizeof shapes->row_bytes);
    memcpy(config.n_rows, shapes->n_rows, sizeof shapes->n_rows);
    amx_write_out(&config);
    _tile_loadconfig(&config);
}

#endif
