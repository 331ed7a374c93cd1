#include "runtime/decision_log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct atsi_decision_log {
    FILE *file;
    char path[];
};

enum atsi_status atsi_decision_log_open(struct atsi_decision_log **out, const char *path, struct atsi_error *err) {
    size_t size = strlen(path) + 1;
    struct atsi_decision_log *log = calloc(1, sizeof *log + size);
    *out = NULL;
    if (!log) return atsi_fail(err, ATSI_FAILED, "out of memory while opening %s", path);
    memcpy(log->path, path, size);
    log->file = fopen(path, "w");
    if (!log->file) {
        free(log);
        return atsi_fail(err, ATSI_FAILED, "%s: %s", path, strerror(errno));
    }
    fputs("time_s,verdict,reason,use,for_cpu,for_gpu,for_link,for_handover_us,recorded_cpu,recorded_gpu,recorded_link,"
          "recorded_handover_us,promoted,shared,forecast_ms,at_work_forecast_ms,at_work_ms,at_work_rounds\n",
          log->file);
    *out = log;
    return ATSI_OK;
}

static void put_scales(FILE *f, const struct atsi_scales *s) {
    fprintf(f, ",%.3f,%.3f,%.3f,%.1f", s->cpu, s->gpu, s->link, s->handover_us);
}

void atsi_decision_log_note(struct atsi_decision_log *log, const struct atsi_decision_entry *e) {
    if (!log) return;
    fprintf(log->file, "%.4f,%s,%s,%s", e->time_us * 1e-6, e->verdict, e->reason, atsi_link_use_name(e->wish.use));
    put_scales(log->file, &e->wish.scales);
    put_scales(log->file, &e->recorded);
    fprintf(log->file, ",%u,%u,%.3f,%.3f,%.3f,%u\n", e->decision.n_promoted, e->decision.n_shared,
            e->forecast_us * 1e-3, e->at_work_forecast_us * 1e-3, e->at_work_us * 1e-3, e->at_work_rounds);
}

enum atsi_status atsi_decision_log_close(struct atsi_decision_log *log, struct atsi_error *err) {
    if (!log) return ATSI_OK;
    bool failed = ferror(log->file) != 0;
    failed |= fclose(log->file) != 0;
    enum atsi_status status = failed ? atsi_fail(err, ATSI_FAILED, "%s: cannot be written", log->path) : ATSI_OK;
    free(log);
    return status;
}
