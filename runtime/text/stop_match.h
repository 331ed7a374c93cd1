// stop_match.h: ends a stream of text at the first of some stop strings, which may lie across token borders.
//
// Bytes that may be the beginning of a stop string are held back and released as soon as they cannot be. The stop
// string that is complete first (fewest bytes of the stream) ends the text; of those complete at the same byte, the
// longest. So the result does not depend on how the stream is cut into tokens, and nothing of the stop string that
// ended it is given out.
#ifndef ATSI_RUNTIME_TEXT_STOP_MATCH_H
#define ATSI_RUNTIME_TEXT_STOP_MATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/base/error.h"
#include "runtime/text/bytes.h"

// Zero-initialise; free with atsi_stop_match_free. Not for several threads at once.
struct atsi_stop_match {
    struct atsi_bytes *stops;
    size_t n_stops;
    struct atsi_bytes held; // fewer bytes than the longest stop string
    bool stopped;
};

// Adds a stop string (copied). An empty one is refused (ATSI_BAD_INPUT): it would stop before any text.
enum atsi_status atsi_stop_match_add(struct atsi_stop_match *match, const char *stop, size_t size,
                                     struct atsi_error *err);

// Takes the next bytes of the stream and appends to `out` what is certainly before any stop string. Once
// `match->stopped` is set nothing more comes out.
enum atsi_status atsi_stop_match_push(struct atsi_stop_match *match, const char *bytes, size_t size,
                                      struct atsi_bytes *out, struct atsi_error *err);

// The stream has ended: appends what was held back (nothing when a stop string ended it).
enum atsi_status atsi_stop_match_finish(struct atsi_stop_match *match, struct atsi_bytes *out, struct atsi_error *err);

void atsi_stop_match_free(struct atsi_stop_match *match);

#endif
