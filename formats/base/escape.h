// escape.h: bytes of unknown origin made safe to print on a terminal.
#ifndef ATSI_FORMATS_BASE_ESCAPE_H
#define ATSI_FORMATS_BASE_ESCAPE_H

#include <stddef.h>

// Writes `size` bytes of `in` to `out` (capacity `out_size` > 0, always terminated, cut at a whole character). Valid
// printable UTF-8 passes; control characters, DEL, C1 controls and malformed bytes become \xNN. A backslash passes
// unchanged, so escaping twice changes nothing. Returns the length written.
size_t atsi_escape(char *out, size_t out_size, const char *in, size_t size);

#endif
