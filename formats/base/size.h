// size.h: sizes as people write and read them.
#ifndef ATSI_FORMATS_BASE_SIZE_H
#define ATSI_FORMATS_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Reads "5.5G": decimal digits, perhaps a point and more digits, then nothing, K, M, G, KiB, MiB or GiB (powers of
// 1024); a bare number is bytes. A fraction of a byte is dropped. False, with *size_bytes untouched, for anything else:
// empty, signs, blanks, exponents, other letters or case, a value over 2^53.
bool atsi_size_parse(const char *text, uint64_t *size_bytes);

// Writes "1.5 GiB", "512 MiB", "700 bytes": three significant digits at most. Returns `out`.
char *atsi_size_format(char *out, size_t out_size, uint64_t size_bytes);

#endif
