#include "runtime/decision_log.h"

enum atsi_status atsi_decision_log_open(struct atsi_output_file **out, const char *path, struct atsi_error *err) {
    ATSI_TRY(atsi_output_file_open(out, path, err));
    fputs("time_s,verdict,reason,use,for_cpu,for_gpu,for_link,for_handover_us,recorded_cpu,recorded_gpu,recorded_link,"
          "recorded_handover_us,promoted,shared,forecast_ms,at_work_forecast_ms,at_work_ms,at_work_rounds\n",
          atsi_output_file_stream(*out));
    return ATSI_OK;
}

static void put_scales(FILE *f, const struct atsi_scales *s) {
    fprintf(f, ",%.3f,%.3f,%.3f,%.1f", s->cpu, s->gpu, s->link, s->handover_us);
}

void atsi_decision_log_note(struct atsi_output_file *log, const struct atsi_decision_entry *e) {
    if (!log) return;
    FILE *f = atsi_output_file_stream(log);
    fprintf(f, "%.4f,%s,%s,%s", e->time_us * 1e-6, e->verdict, e->reason, atsi_link_use_name(e->wish.use));
    put_scales(f, &e->wish.scales);
    put_scales(f, &e->recorded);
    fprintf(f, ",%u,%u,%.3f,%.3f,%.3f,%u\n", e->decision.n_promoted, e->decision.n_shared, e->forecast_us * 1e-3,
            e->at_work_forecast_us * 1e-3, e->at_work_us * 1e-3, e->at_work_rounds);
}
