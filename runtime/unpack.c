#include "runtime/unpack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/plan_writer.h"

// "dir/m.atsp" -> "dir/m.unpacked.atsp". Free with free(); NULL when memory runs out.
static char *unpacked_path(const char *path) {
    static const char suffix[] = ".atsp", unpacked[] = ".unpacked.atsp";
    size_t length = strlen(path);
    if (length >= strlen(suffix) && !strcmp(path + length - strlen(suffix), suffix)) length -= strlen(suffix);
    char *name = malloc(length + sizeof unpacked);
    if (name) snprintf(name, length + sizeof unpacked, "%.*s%s", (int)length, path, unpacked);
    return name;
}

// ---- writing ------------------------------------------------------------------------------------------------------

struct unpacking {
    const struct atsi_plan_file *file;
    const struct atsi_unpack_params *params;
    struct atsi_plan_writer *writer;
    uint64_t done_bytes, total_bytes;
};

static enum atsi_status unpack_tensor(struct unpacking *u, const struct atsi_plan_blob *blob, struct atsi_error *err) {
    uint64_t size_bytes = blob->tensor.size_bytes;
    if (*u->params->interrupted) return atsi_fail(err, ATSI_INTERRUPTED, "interrupted");
    ATSI_TRY(atsi_plan_file_verify_blob(u->file, blob, err));
    void *bytes = malloc(size_bytes);
    if (!bytes) return atsi_fail(err, ATSI_FAILED, "no memory for tensor %s", blob->tensor.name);
    enum atsi_status status = atsi_plan_file_read(u->file, blob, u->params->n_threads, bytes, err);
    if (status == ATSI_OK) status = atsi_plan_writer_add(u->writer, &blob->tensor, blob->section, false, bytes, err);
    free(bytes);
    u->done_bytes += size_bytes;
    if (u->params->progress) u->params->progress(u->params->context, u->done_bytes, u->total_bytes);
    return status;
}

static enum atsi_status write_unpacked(const struct atsi_plan_file *file, const char *path,
                                       const struct atsi_unpack_params *params, struct atsi_error *err) {
    struct unpacking u = {.file = file, .params = params};
    uint32_t n = atsi_plan_file_n_blobs(file);
    for (uint32_t i = 0; i < n; i++) u.total_bytes += atsi_plan_file_blob(file, i)->tensor.size_bytes;
    struct atsi_plan_writer_options options = {.section_alignment = atsi_plan_section_alignment(u.total_bytes)};
    enum atsi_status status = atsi_plan_writer_create(&u.writer, path, &options, err);
    for (uint32_t i = 0; status == ATSI_OK && i < n; i++) status = unpack_tensor(&u, atsi_plan_file_blob(file, i), err);
    if (status == ATSI_OK)
        status = atsi_plan_writer_finish(u.writer, atsi_plan_file_manifest(file), atsi_plan_file_tokenizer(file), err);
    atsi_plan_writer_free(u.writer);
    return status;
}

// ---- finding ------------------------------------------------------------------------------------------------------

// Manifests name the model by its hash and the second they were made in, so equal ones are of the same plan.
static bool is_unpacked(const struct atsi_plan_file *shipped, const char *path) {
    struct atsi_plan_file *file;
    struct atsi_error ignored;
    if (atsi_plan_file_open(&file, path, &ignored) != ATSI_OK) return false;
    struct atsi_str a = atsi_plan_file_manifest(shipped), b = atsi_plan_file_manifest(file);
    bool same = !atsi_plan_file_is_shipped(file) && a.size == b.size && !memcmp(a.data, b.data, a.size);
    atsi_plan_file_close(file);
    return same;
}

static enum atsi_status open_unpacked(struct atsi_model *model, const char *path,
                                      const struct atsi_unpack_params *params, bool *wrote, struct atsi_error *err) {
    struct atsi_model unpacked;
    *wrote = !is_unpacked(model->file, path);
    if (*wrote) ATSI_TRY(write_unpacked(model->file, path, params, err));
    enum atsi_status status = atsi_model_open(&unpacked, path, err);
    struct atsi_model *closed = status == ATSI_OK ? model : &unpacked;
    atsi_model_close(closed);
    if (status == ATSI_OK) *model = unpacked;
    return status;
}

enum atsi_status atsi_unpack_model(struct atsi_model *model, const struct atsi_unpack_params *params, bool *wrote,
                                   struct atsi_error *err) {
    char *path = unpacked_path(params->path);
    if (!path) return atsi_fail(err, ATSI_FAILED, "out of memory while unpacking %s", params->path);
    enum atsi_status status = open_unpacked(model, path, params, wrote, err);
    free(path);
    return status;
}
