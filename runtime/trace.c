#include "runtime/trace.h"

#include <stdlib.h>

#include "formats/base/clock.h"
#include "formats/base/output_file.h"

struct atsi_trace {
    struct atsi_output_file *file;
    FILE *stream; // of the file
    double origin_us;
};

enum atsi_status atsi_trace_open(struct atsi_trace **out, const char *path, struct atsi_error *err) {
    static const char *const lanes[] = {"CPU", "CPU waits", "GPU compute", "Copy engine", "Rounds", "Decisions"};
    struct atsi_trace *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return atsi_fail(err, ATSI_FAILED, "out of memory while opening a trace");
    enum atsi_status status = atsi_output_file_open(&t->file, path, err);
    if (status != ATSI_OK) {
        free(t);
        return status;
    }
    t->stream = atsi_output_file_stream(t->file);
    t->origin_us = atsi_clock_us();
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", t->stream);
    for (int i = 0; i < 6; i++)
        fprintf(t->stream,
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
    fputs(",\n{\"ph\": \"X\", \"pid\": 1, \"name\": \"", t->stream);
    put_name(t->stream, name);
    fprintf(t->stream, "\", \"tid\": %d, \"ts\": %.2f, \"dur\": %.2f}", (int)lane, start_us - t->origin_us,
            duration_us);
}

enum atsi_status atsi_trace_close(struct atsi_trace *t, struct atsi_error *err) {
    if (!t) return ATSI_OK;
    fputs("\n]}\n", t->stream);
    enum atsi_status status = atsi_output_file_close(t->file, err);
    free(t);
    return status;
}

void atsi_trace_discard(struct atsi_trace *t) {
    if (!t) return;
    atsi_output_file_discard(t->file);
    free(t);
}
