#include "formats/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "formats/base/escape.h"

static void record(struct atsi_error *err, const char *format, va_list args) {
    char raw[sizeof err->text];
    vsnprintf(raw, sizeof raw, format, args);
    atsi_escape(err->text, sizeof err->text, raw, strlen(raw));
}

enum atsi_status(atsi_fail)(struct atsi_error *err, enum atsi_status status, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        record(err, format, args);
        va_end(args);
        err->status = status;
    }
    return status;
}

enum atsi_status(atsi_out_of_memory)(struct atsi_error *err) { return atsi_fail(err, ATSI_FAILED, "out of memory"); }

enum atsi_status(atsi_fail_prefix)(struct atsi_error *err, const char *format, ...) {
    if (!err) return ATSI_FAILED;
    char prefix[256], joined[sizeof err->text + sizeof prefix + 2];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    snprintf(joined, sizeof joined, "%s: %s", prefix, err->text);
    atsi_escape(err->text, sizeof err->text, joined, strlen(joined));
    return err->status;
}
