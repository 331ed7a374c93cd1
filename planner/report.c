#include "planner/report.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/escape.h"
#include "formats/base/json.h"
#include "formats/base/size.h"

struct size_text {
    char text[32];
};
static struct size_text size_of(uint64_t bytes) {
    struct size_text s;
    atsi_size_format(s.text, sizeof s.text, bytes);
    return s;
}

// At the planned context.
static uint64_t state_bytes(const struct atsi_plan *plan) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->program.n_states; i++)
        bytes +=
            atsi_state_bytes(&plan->program.states[i], plan->limits.n_ctx, plan->limits.chunk, plan->limits.kv_type);
    return bytes;
}

static uint64_t tensor_bytes(const struct atsi_program *p) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->n_tensors; i++) bytes += p->tensors[i].size_bytes;
    return bytes;
}

static uint32_t n_gpu_units(const struct atsi_program *p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_units; i++) n += p->units[i].backend == ATSI_GPU;
    return n;
}

// ---- --info -------------------------------------------------------------------------------------------------------

static void print_types(FILE *out, const struct atsi_program *p) {
    for (uint32_t d = 0; d < ATSI_DTYPE_LIMIT; d++) {
        uint64_t bytes = 0;
        uint32_t n = 0;
        for (uint32_t i = 0; i < p->n_tensors; i++)
            if (p->tensors[i].dtype == d) {
                bytes += p->tensors[i].size_bytes;
                n++;
            }
        if (n) fprintf(out, "  %-8s %5u tensors  %s\n", atsi_dtype_name(d), n, size_of(bytes).text);
    }
}

static void print_file(FILE *out, const struct atsi_plan_file *file, bool is_vocab) {
    uint64_t packed = 0, stored = 0;
    uint32_t n_compressed = 0;
    for (uint32_t i = 0; i < atsi_plan_file_n_blobs(file); i++) {
        const struct atsi_plan_blob *blob = atsi_plan_file_blob(file, i);
        packed += blob->tensor.size_bytes;
        stored += blob->stored_bytes;
        n_compressed += blob->encoding != ATSI_PLAN_RAW;
    }
    fprintf(out, "file       %s, %s%s\n", atsi_plan_file_path(file), size_of(atsi_plan_file_size_bytes(file)).text,
            atsi_plan_file_is_shipped(file) ? ", compressed for transport" : "");
    if (is_vocab)
        fprintf(out, "weights    none: the plan only tokenises\n");
    else if (!atsi_plan_file_has_weights(file))
        fprintf(out, "weights    none in the file; complete it with atsi-plan --attach\n");
    else if (n_compressed)
        fprintf(out, "weights    %s stored for %s packed, %u of %u tensors compressed\n", size_of(stored).text,
                size_of(packed).text, n_compressed, atsi_plan_file_n_blobs(file));
}

static void print_plan(FILE *out, const struct atsi_plan *plan) {
    const struct atsi_program *p = &plan->program;
    const struct atsi_plan_limits *l = &plan->limits;
    fprintf(out, "program    %u operations in %u units over %u tensors, %u states; vocabulary %u\n", p->n_ops,
            p->n_units, p->n_tensors, p->n_states, p->n_vocab);
    print_types(out, p);
    fprintf(out, "limits     context %u (trained %u), chunk %u, kv %s\n", l->n_ctx, plan->model.n_ctx_train, l->chunk,
            atsi_dtype_name(l->kv_type));
    fprintf(out, "memory     weights %s, states %s, activations %s\n", size_of(tensor_bytes(p)).text,
            size_of(state_bytes(plan)).text, size_of(l->compute_bytes).text);
    if (n_gpu_units(p) == 0)
        fprintf(out, "placement  all on the CPU\n");
    else
        fprintf(out, "placement  %u of %u units on the GPU within %s, planned for %s\n", n_gpu_units(p), p->n_units,
                size_of(l->vram_bytes).text, plan->device);
    struct atsi_resident_experts_sum experts = atsi_plan_sum_resident_experts(plan);
    if (experts.n > 0)
        fprintf(
            out,
            "experts    %u of %u resident one by one, %u to %u a layer; %.1f %% of the choices expected among them\n",
            experts.n, experts.n_of, experts.n_least, experts.n_most, 100 * experts.hit_rate);
    if (plan->predicted_decode_us > 0)
        fprintf(out, "predicted  decode %.2f tokens/s, prefill %.1f tokens/s\n", 1e6 / plan->predicted_decode_us,
                plan->predicted_prefill_us > 0 ? 1e6 * l->chunk / plan->predicted_prefill_us : 0.0);
    if (strcmp(plan->certificate.milp_status, "skipped") != 0)
        fprintf(out, "certified  %s: gap %.4f %%\n", plan->certificate.milp_status, 100 * plan->certificate.gap);
}

static enum atsi_status print_json(FILE *out, const struct atsi_plan *plan, struct atsi_error *err) {
    char *json;
    size_t size;
    ATSI_TRY(atsi_plan_to_json(plan, &json, &size, err));
    fwrite(json, 1, size, out);
    fputc('\n', out);
    free(json);
    return ATSI_OK;
}

enum atsi_status atsi_report_info(FILE *out, const struct atsi_plan_file *file, const struct atsi_plan *plan, bool json,
                                  struct atsi_error *err) {
    if (json) return print_json(out, plan, err);
    fprintf(out, "model      %s (%s)", plan->model.name[0] ? plan->model.name : "unnamed", plan->model.arch);
    if (plan->model.n_params) fprintf(out, ", %.3g billion parameters", (double)plan->model.n_params * 1e-9);
    fprintf(out, "\nsource     %llu bytes, identity %016llx\n", (unsigned long long)plan->model.gguf_bytes,
            (unsigned long long)plan->model.gguf_hash);
    print_file(out, file, plan->vocab_only);
    fprintf(out, "tokenizer  %s\n",
            atsi_plan_file_tokenizer(file).size ? size_of(atsi_plan_file_tokenizer(file).size).text : "none");
    fprintf(out, "chat       %s\n",
            plan->chat_format[0]  ? plan->chat_format
            : plan->chat_template ? "unknown template"
                                  : "none");
    if (!plan->vocab_only) print_plan(out, plan);
    for (const char *line = plan->notes; line && *line;) {
        char shown[1024];
        size_t length = strcspn(line, "\n");
        atsi_escape(shown, sizeof shown, line, length);
        fprintf(out, "note       %s\n", shown);
        line += length + (line[length] == '\n');
    }
    return ATSI_OK;
}

// ---- --verify -----------------------------------------------------------------------------------------------------

static enum atsi_status verified_json(FILE *out, const struct atsi_plan_file *file, struct atsi_error *err) {
    cJSON *root = cJSON_CreateObject();
    bool good = root && cJSON_AddStringToObject(root, "plan", atsi_plan_file_path(file)) &&
                cJSON_AddBoolToObject(root, "good", true) &&
                atsi_json_put(root, "n_tensors", atsi_plan_file_n_blobs(file)) &&
                atsi_json_put(root, "bytes", (double)atsi_plan_file_size_bytes(file));
    return atsi_json_print(out, root, good, err);
}

enum atsi_status atsi_report_verified(FILE *out, const struct atsi_plan_file *file, bool json, struct atsi_error *err) {
    if (json) return verified_json(out, file, err);
    fprintf(out, "%s: good: %u tensors, %s\n", atsi_plan_file_path(file), atsi_plan_file_n_blobs(file),
            size_of(atsi_plan_file_size_bytes(file)).text);
    return ATSI_OK;
}

// ---- after writing ------------------------------------------------------------------------------------------------

static enum atsi_status written_json(FILE *out, const char *path, const struct atsi_plan *plan,
                                     const struct atsi_write_result *result, struct atsi_error *err) {
    cJSON *root = cJSON_CreateObject();
    bool good = root && cJSON_AddStringToObject(root, "plan", path) &&
                cJSON_AddStringToObject(root, "model", plan->model.name) &&
                cJSON_AddStringToObject(root, "arch", plan->model.arch) &&
                atsi_json_put(root, "n_params", (double)plan->model.n_params) &&
                atsi_json_put(root, "n_ctx", plan->limits.n_ctx) && atsi_json_put(root, "chunk", plan->limits.chunk) &&
                atsi_json_put(root, "n_units", plan->program.n_units) &&
                atsi_json_put(root, "n_gpu_units", n_gpu_units(&plan->program)) &&
                atsi_json_put(root, "vram_bytes", (double)plan->limits.vram_bytes) &&
                atsi_json_put(root, "packed_bytes", (double)result->packed_bytes) &&
                atsi_json_put(root, "stored_bytes", (double)result->stored_bytes) &&
                atsi_json_put(root, "state_bytes", (double)state_bytes(plan)) &&
                atsi_json_put(root, "compute_bytes", (double)plan->limits.compute_bytes) &&
                atsi_json_put_figure(root, "predicted_decode_us", plan->predicted_decode_us) &&
                atsi_json_put_figure(root, "predicted_prefill_us", plan->predicted_prefill_us);
    return atsi_json_print(out, root, good, err);
}

enum atsi_status atsi_report_written(const struct atsi_console *console, const char *path, const struct atsi_plan *plan,
                                     const struct atsi_write_result *result, bool json, struct atsi_error *err) {
    if (plan->vocab_only) {
        atsi_say(console, "%s: a tokenizer and no model", path);
    } else {
        atsi_say(console, "%s: %s (%s), %u units, context %u, weights %s, states %s, activations %s", path,
                 plan->model.name[0] ? plan->model.name : "unnamed", plan->model.arch, plan->program.n_units,
                 plan->limits.n_ctx, size_of(result->packed_bytes).text, size_of(state_bytes(plan)).text,
                 size_of(plan->limits.compute_bytes).text);
        if (result->n_compressed)
            atsi_say(console, "compressed: %u of %u tensors, %.1f %% of the packed size", result->n_compressed,
                     plan->program.n_tensors, 100.0 * (double)result->stored_bytes / (double)result->packed_bytes);
    }
    return json ? written_json(console->out, path, plan, result, err) : ATSI_OK;
}
