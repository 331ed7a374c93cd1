#include "runtime/trace.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"

struct atsi_trace {
    FILE *file;
    char *path;
    double origin_us;
};

enum atsi_status atsi_trace_open(struct atsi_trace **out, const char *path, struct atsi_error *err) {
    static const char *const lanes[] = {"CPU", "CPU waits", "GPU compute", "Copy engine", "Rounds", "Decisions"};
    struct atsi_trace *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t || !(t->path = strdup(path))) {
        free(t);
        return atsi_fail(err, ATSI_FAILED, "out of memory while opening a trace");
    }
    t->file = fopen(path, "w");
    if (!t->file) {
        atsi_fail(err, ATSI_FAILED, "%s: %s", path, strerror(errno));
        free(t->path);
        free(t);
        return ATSI_FAILED;
    }
    t->origin_us = atsi_clock_us();
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", t->file);
    for (int i = 0; i < 6; i++)
        fprintf(t->file,
                "%s{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": %d, \"args\": {\"name\": \"%s\"}}",
                i ? ",\n" : "", i + 1, lanes[i]);
    *out = t;
    return ATSI_OK;
}

// Names come from plans of any origin: what JSON does not allow in a string becomes '?'.
static void put_name(FILE *f, const char *name) {
    for (; *name; name++) fputc((unsigned char)*name < 0x20 || *name == '"' || *name == '\\' ? '?' : *name, f);
}

void atsi_trace_span(struct atsi_trace *t, enum atsi_trace_lane lane, const char *name, double start_us,
                     double duration_us) {
    if (!t) return;
    fputs(",\n{\"ph\": \"X\", \"pid\": 1, \"name\": \"", t->file);
    put_name(t->file, name);
    fprintf(t->file, "\", \"tid\": %d, \"ts\": %.2f, \"dur\": %.2f}", (int)lane, start_us - t->origin_us, duration_us);
}

enum atsi_status atsi_trace_close(struct atsi_trace *t, struct atsi_error *err) {
    if (!t) return ATSI_OK;
    fputs("\n]}\n", t->file);
    bool failed = ferror(t->file) != 0;
    failed |= fclose(t->file) != 0;
    enum atsi_status status =
        failed ? atsi_fail(err, ATSI_FAILED, "%s: the trace could not be written", t->path) : ATSI_OK;
    free(t->path);
    free(t);
    return status;
}
