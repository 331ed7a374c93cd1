// utf8.h: recognising well-formed UTF-8.
#ifndef ATSI_FORMATS_BASE_UTF8_H
#define ATSI_FORMATS_BASE_UTF8_H

#include <stddef.h>

// Length (1 to 4) of the well-formed character at `text`, of which `left` > 0 bytes are there; 0 when it is malformed
// or cut off. RFC 3629: no overlong forms, no surrogates, nothing over U+10FFFF.
size_t atsi_utf8_length(const char *text, size_t left);

#endif
