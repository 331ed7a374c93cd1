#include "runtime/text/stop_match.h"

#include <stdlib.h>
#include <string.h>

enum atsi_status atsi_stop_match_add(struct atsi_stop_match *match, const char *stop, size_t size,
                                     struct atsi_error *err) {
    if (size == 0) return atsi_fail(err, ATSI_BAD_INPUT, "a stop string is empty");
    struct atsi_bytes *stops = reallocarray(match->stops, match->n_stops + 1, sizeof *stops);
    if (!stops) return atsi_fail(err, ATSI_FAILED, "out of memory for %zu stop strings", match->n_stops + 1);
    match->stops = stops;
    stops[match->n_stops] = (struct atsi_bytes){0};
    ATSI_TRY(atsi_bytes_append(&stops[match->n_stops], stop, size, err));
    match->n_stops++;
    return ATSI_OK;
}

// Bytes of the longest stop string that the held text ends with, 0 for none.
static size_t complete_stop(const struct atsi_stop_match *match) {
    const struct atsi_bytes *held = &match->held;
    size_t longest = 0;
    for (size_t i = 0; i < match->n_stops; i++) {
        const struct atsi_bytes *stop = &match->stops[i];
        if (stop->size <= longest || stop->size > held->size) continue;
        if (memcmp(held->data + held->size - stop->size, stop->data, stop->size) == 0) longest = stop->size;
    }
    return longest;
}

static bool is_beginning(const struct atsi_stop_match *match, const char *bytes, size_t size) {
    for (size_t i = 0; i < match->n_stops; i++)
        if (size < match->stops[i].size && memcmp(match->stops[i].data, bytes, size) == 0) return true;
    return false;
}

static enum atsi_status release(struct atsi_stop_match *match, size_t size, struct atsi_bytes *out,
                                struct atsi_error *err) {
    struct atsi_bytes *held = &match->held;
    if (size == 0) return ATSI_OK;
    ATSI_TRY(atsi_bytes_append(out, held->data, size, err));
    held->size -= size;
    memmove(held->data, held->data + size, held->size);
    return ATSI_OK;
}

static enum atsi_status push_byte(struct atsi_stop_match *match, char byte, struct atsi_bytes *out,
                                  struct atsi_error *err) {
    struct atsi_bytes *held = &match->held;
    ATSI_TRY(atsi_bytes_append(held, &byte, 1, err));
    size_t stop_size = complete_stop(match);
    if (stop_size) {
        ATSI_TRY(release(match, held->size - stop_size, out, err));
        held->size = 0;
        match->stopped = true;
        return ATSI_OK;
    }
    size_t decided = 0;
    while (decided < held->size && !is_beginning(match, held->data + decided, held->size - decided)) decided++;
    return release(match, decided, out, err);
}

enum atsi_status atsi_stop_match_push(struct atsi_stop_match *match, const char *bytes, size_t size,
                                      struct atsi_bytes *out, struct atsi_error *err) {
    if (match->n_stops == 0) return atsi_bytes_append(out, bytes, size, err);
    for (size_t i = 0; i < size && !match->stopped; i++) ATSI_TRY(push_byte(match, bytes[i], out, err));
    return ATSI_OK;
}

enum atsi_status atsi_stop_match_finish(struct atsi_stop_match *match, struct atsi_bytes *out, struct atsi_error *err) {
    return release(match, match->held.size, out, err);
}

void atsi_stop_match_free(struct atsi_stop_match *match) {
    for (size_t i = 0; i < match->n_stops; i++) atsi_bytes_free(&match->stops[i]);
    free(match->stops);
    atsi_bytes_free(&match->held);
    *match = (struct atsi_stop_match){0};
}
