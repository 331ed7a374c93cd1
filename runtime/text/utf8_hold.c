#include "runtime/text/utf8_hold.h"

#include <stdbool.h>
#include <string.h>

#include "formats/base/utf8.h"

#define REPLACEMENT      "\xEF\xBF\xBD" // U+FFFD
#define REPLACEMENT_SIZE 3

// Whether `size` bytes are a proper beginning of some character: some continuation completes them.
static bool can_become_character(const char *bytes, size_t size) {
    unsigned char lead = (unsigned char)bytes[0];
    size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || size >= length) return false;
    // The second byte's range depends on the lead (no overlong forms, surrogates or codes past U+10FFFF) and always
    // reaches 0x80 or 0xBF, the ends of the others' range: trying both tells whether any completion is well-formed.
    static const char fills[] = {'\x80', '\xBF'};
    for (size_t f = 0; f < sizeof fills; f++) {
        char character[4];
        memset(character, fills[f], sizeof character);
        memcpy(character, bytes, size);
        if (atsi_utf8_length(character, length) == length) return true;
    }
    return false;
}

// Appends what `bytes` starts with. *taken is how many bytes that was, 0 when they may still become a character.
static enum atsi_status take(const char *bytes, size_t size, size_t *taken, struct atsi_bytes *out,
                             struct atsi_error *err) {
    *taken = atsi_utf8_length(bytes, size);
    if (*taken) return atsi_bytes_append(out, bytes, *taken, err);
    size_t part = 0; // the longest beginning of a character
    while (part < size && can_become_character(bytes, part + 1)) part++;
    if (part == size) return ATSI_OK;
    *taken = part ? part : 1;
    return atsi_bytes_append(out, REPLACEMENT, REPLACEMENT_SIZE, err);
}

// Adds one byte to the held ones and lets go of what is decided.
static enum atsi_status push_byte(struct atsi_utf8_hold *hold, char byte, struct atsi_bytes *out,
                                  struct atsi_error *err) {
    hold->tail[hold->n_tail++] = byte;
    for (size_t taken = 1; hold->n_tail && taken;) {
        ATSI_TRY(take(hold->tail, hold->n_tail, &taken, out, err));
        hold->n_tail -= taken;
        memmove(hold->tail, hold->tail + taken, hold->n_tail);
    }
    return ATSI_OK;
}

enum atsi_status atsi_utf8_hold_push(struct atsi_utf8_hold *hold, const char *bytes, size_t size,
                                     struct atsi_bytes *out, struct atsi_error *err) {
    for (size_t i = 0; i < size; i++) ATSI_TRY(push_byte(hold, bytes[i], out, err));
    return ATSI_OK;
}

enum atsi_status atsi_utf8_hold_finish(struct atsi_utf8_hold *hold, struct atsi_bytes *out, struct atsi_error *err) {
    if (hold->n_tail == 0) return ATSI_OK;
    hold->n_tail = 0;
    return atsi_bytes_append(out, REPLACEMENT, REPLACEMENT_SIZE, err);
}
