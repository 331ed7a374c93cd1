// run_plans: many short runs in one process, with the card opened once: opening and closing it takes a test's run ten times as long as
// the run itself, and longer when other programs do the same.
//
//   run_plans [OPTIONS] <LIST
//
// A line of LIST is `PLAN.atsp OUT [OPTIONS]`, parted by spaces. OPTIONS are those of atsi-run for generation, machine, scheduling and ablation,
// of which --device and --isa do not change from line to line; the prompt is that of --tokens-in.
// Every run is greedy, to the end whatever comes, and leaves what atsi-run leaves with --logits OUT.logits --print-ids >OUT.ids. One line a run:
//   OUT ok, N promoted, N exchanged
// or what went wrong. Exit code 1 when a run failed.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/generate.h"
#include "runtime/input.h"
#include "runtime/loaded.h"
#include "runtime/open_device.h"

enum {
    MAX_WORDS = 64
};

struct run {
    struct atsi_run_options o;
    struct atsi_model model;
    struct atsi_device *device; // borrowed; NULL: the CPU alone
    struct atsi_loaded loaded;
    struct atsi_sampler *sampler;
    FILE *logits, *ids;
};

static FILE *open_output(const char *out, const char *suffix, struct atsi_error *err) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s", out, suffix);
    FILE *f = fopen(path, "wb");
    if (!f) atsi_fail(err, ATSI_FAILED, "%s: %s", path, strerror(errno));
    return f;
}

// Everything is on the disk when true.
static bool close_output(FILE **f) {
    bool well = !*f || (!ferror(*f) & !fclose(*f));
    *f = NULL;
    return well;
}

static void write_logits(void *context, const float *logits, uint32_t first_output, uint32_t n_outputs) {
    struct run *r = context;
    (void)first_output; // rows come in order
    fwrite(logits, sizeof *logits, (size_t)n_outputs * r->model.plan.program.n_vocab, r->logits);
}

static bool write_id(void *context, int32_t id, struct atsi_error *err, enum atsi_status *status) {
    struct run *r = context;
    (void)err, (void)status; // a failed write is found when the file is closed
    fprintf(r->ids, "%s%d", ftell(r->ids) > 0 ? " " : "", id);
    return true;
}

static enum atsi_status open_session(struct run *r, struct atsi_error *err) {
    const struct atsi_loaded_params params = {.options = &r->o, .model = &r->model, .device = r->device};
    ATSI_TRY(atsi_loaded_weights(&r->loaded, &params, err));
    return atsi_loaded_session(&r->loaded, &params, err);
}

static enum atsi_status open_sampler(struct run *r, struct atsi_error *err) {
    struct atsi_sampler_params greedy = r->o.sampling;
    int32_t *banned = NULL;
    uint32_t n_banned;
    greedy.temp = 0;
    ATSI_TRY(atsi_model_banned_ids(&r->model, &banned, &n_banned, err));
    enum atsi_status status =
        atsi_sampler_create(&greedy, r->model.plan.program.n_vocab, banned, n_banned, &r->sampler, err);
    free(banned);
    return status;
}

static enum atsi_status generate(struct run *r, struct atsi_error *err) {
    struct atsi_generate_params params = {r->o.n_predict, true, write_id, r, NULL};
    struct atsi_generate_result result;
    struct atsi_bytes text = {0};
    int32_t *ids = NULL;
    uint32_t n_ids;
    if (!r->o.tokens_path) return atsi_fail(err, ATSI_BAD_INPUT, "--tokens-in is needed");
    enum atsi_status status = atsi_read_prompt(&r->o, &text, err);
    if (status == ATSI_OK) status = atsi_parse_ids(text.data, text.size, r->o.tokens_path, &ids, &n_ids, err);
    if (status == ATSI_OK)
        status =
            atsi_generate(&r->model, r->loaded.session, r->sampler, ids, n_ids, write_logits, r, &params, &result, err);
    free(ids);
    atsi_bytes_free(&text);
    if (status == ATSI_OK) fputc('\n', r->ids);
    return status;
}

static enum atsi_status run(struct run *r, const char *out, struct atsi_error *err) {
    ATSI_TRY(open_session(r, err));
    ATSI_TRY(open_sampler(r, err));
    if (!(r->logits = open_output(out, ".logits", err)) || !(r->ids = open_output(out, ".ids", err)))
        return ATSI_FAILED;
    ATSI_TRY(generate(r, err));
    if (!close_output(&r->logits) || !close_output(&r->ids))
        return atsi_fail(err, ATSI_FAILED, "%s: cannot be written", out);
    return ATSI_OK;
}

static void close_run(struct run *r) {
    close_output(&r->logits);
    close_output(&r->ids);
    atsi_sampler_free(r->sampler);
    atsi_loaded_free(&r->loaded);
    atsi_model_close(&r->model);
}

// A simulated card is as large as its first plan says, so it is opened for each.
static enum atsi_status take_device(struct run *r, struct atsi_device **kept, struct atsi_error *err) {
    struct atsi_error fallback;
    if (*kept && r->o.device && !strncmp(r->o.device, "sim:", 4)) {
        (*kept)->ops->close(*kept);
        *kept = NULL;
    }
    if (!*kept) ATSI_TRY(atsi_open_device(&r->o, &r->model.plan, kept, &fallback, err));
    r->device = *kept;
    return ATSI_OK;
}

// One line of the list: its words and those of the command line, as atsi-run would get them.
static enum atsi_status run_line(char *line, int n_common, char **common, struct atsi_device **kept,
                                 struct atsi_error *err) {
    char *words[MAX_WORDS] = {"run_plans"}, *out = NULL;
    int n = 1, n_line = 0;
    struct run r = {0};
    for (char *word = strtok(line, " \n"); word && n < MAX_WORDS - n_common; word = strtok(NULL, " \n"), n_line++) {
        if (n_line == 1)
            out = word;
        else
            words[n++] = word;
    }
    if (!out) return atsi_fail(err, ATSI_BAD_INPUT, "a line is not PLAN OUT [OPTIONS]");
    printf("%s ", out);
    for (int i = 0; i < n_common; i++) words[n++] = common[i];
    enum atsi_status status = atsi_run_options_parse(n, words, &r.o, err);
    if (status == ATSI_OK) status = atsi_model_open(&r.model, r.o.plan_path, err);
    if (status == ATSI_OK) status = take_device(&r, kept, err);
    if (status == ATSI_OK) status = run(&r, out, err);
    if (status == ATSI_OK)
        printf("ok, %u promoted, %u exchanged\n", r.loaded.session->rescheduler.stats.decision.n_promoted,
               r.loaded.session->exchange ? atsi_exchange_figures(r.loaded.session->exchange).n_exchanged : 0);
    close_run(&r);
    return status;
}

int main(int argc, char **argv) {
    struct atsi_device *device = NULL; // kept from one run to the next
    char line[8192];
    int n_failed = 0;
    while (fgets(line, sizeof line, stdin)) {
        struct atsi_error err = {0};
        if (run_line(line, argc - 1, argv + 1, &device, &err) != ATSI_OK) {
            n_failed++;
            printf("%s\n", err.text);
        }
        fflush(stdout); // what was seen is known, whatever the next run does
    }
    if (device) device->ops->close(device);
    return n_failed > 0;
}
