#include "runtime/input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum atsi_status read_stream(FILE *f, const char *name, struct atsi_bytes *out, struct atsi_error *err) {
    char piece[1 << 14];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, f)) > 0) ATSI_TRY(atsi_bytes_append(out, piece, n, err));
    if (!ferror(f)) return ATSI_OK;
    return atsi_fail(err, errno == EISDIR ? ATSI_BAD_INPUT : ATSI_FAILED, "%s: %s", name, strerror(errno));
}

enum atsi_status atsi_read_prompt(const struct atsi_run_options *o, struct atsi_bytes *out, struct atsi_error *err) {
    const char *path = o->prompt_path ? o->prompt_path : o->tokens_path;
    if (o->prompt) return atsi_bytes_append(out, o->prompt, strlen(o->prompt), err);
    if (!path) return read_stream(stdin, "standard input", out, err);
    FILE *f = fopen(path, "rb");
    if (!f) return atsi_fail(err, ATSI_BAD_INPUT, "%s: %s", path, strerror(errno));
    enum atsi_status status = read_stream(f, path, out, err);
    fclose(f);
    return status;
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static enum atsi_status parse_id(const char **at, const char *end, const char *name, int32_t *id,
                                 struct atsi_error *err) {
    const char *start = *at;
    int64_t value = 0;
    for (; *at < end && **at >= '0' && **at <= '9' && value <= INT32_MAX; ++*at) value = value * 10 + (**at - '0');
    if (*at == start || value > INT32_MAX || (*at < end && !is_space(**at))) {
        int length = 0;
        while (length < 20 && start + length < end && !is_space(start[length])) length++;
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: \"%.*s\" is no token id", name, length, start);
    }
    *id = (int32_t)value;
    return ATSI_OK;
}

enum atsi_status atsi_parse_ids(const char *text, size_t size, const char *name, int32_t **ids, uint32_t *n,
                                struct atsi_error *err) {
    const char *at = text, *end = text + size;
    *n = 0;
    *ids = malloc((size / 2 + 1) * sizeof **ids); // an id takes at least a digit and a space
    if (!*ids) return atsi_fail(err, ATSI_FAILED, "out of memory while reading token ids");
    for (;;) {
        while (at < end && is_space(*at)) at++;
        if (at == end) return ATSI_OK;
        ATSI_TRY(parse_id(&at, end, name, &(*ids)[*n], err));
        ++*n;
    }
}
