// normalize.h: Unicode normalisation form C.
#ifndef ATSI_RUNTIME_TOKENIZER_NORMALIZE_H
#define ATSI_RUNTIME_TOKENIZER_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/base/error.h"

// True when `text` (well-formed UTF-8) is certainly in form C already, which is cheap to see for most text.
bool atsi_is_surely_nfc(const char *text, size_t size);

// *out (free with free()) becomes the form C of `text`, which must be well-formed UTF-8. Takes O(n log n) whatever the
// order of combining marks.
enum atsi_status atsi_normalize_nfc(const char *text, size_t size, char **out, size_t *out_size,
                                    struct atsi_error *err);

#endif
