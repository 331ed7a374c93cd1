// utf8_hold.h: makes a stream of token bytes fit to print: whole characters only, malformed bytes replaced.
//
// A character may be divided over tokens. Its first bytes are held back until the rest comes or cannot come any more.
#ifndef ATSI_RUNTIME_TEXT_UTF8_HOLD_H
#define ATSI_RUNTIME_TEXT_UTF8_HOLD_H

#include <stddef.h>

#include "formats/base/error.h"
#include "runtime/text/bytes.h"

// Zero-initialise. Owns nothing.
struct atsi_utf8_hold {
    char tail[4]; // the beginning of a character: n_tail < 4 bytes of it
    size_t n_tail;
};

// Appends to `out` the characters that are complete with these bytes. What cannot become a character any more is
// replaced: U+FFFD for each longest part that could have been the beginning of one, as the Unicode standard recommends.
enum atsi_status atsi_utf8_hold_push(struct atsi_utf8_hold *hold, const char *bytes, size_t size,
                                     struct atsi_bytes *out, struct atsi_error *err);

// The stream has ended: appends one U+FFFD when a character was left incomplete, and forgets it.
enum atsi_status atsi_utf8_hold_finish(struct atsi_utf8_hold *hold, struct atsi_bytes *out, struct atsi_error *err);

#endif
