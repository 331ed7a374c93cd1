// Verifying all tensors of a plan file by several threads.
#include <pthread.h>
#include <stdlib.h>

#include "formats/plan_file.h"

// What the threads share; `lock` guards everything below it.
struct verification {
    const struct atsi_plan_file *file;
    const struct atsi_plan_progress *progress;
    uint64_t total_bytes;
    pthread_mutex_t lock;
    uint32_t next; // blob
    uint64_t done_bytes;
    enum atsi_status status; // of the first failure
    struct atsi_error err;
};

// The next blob for a thread; NULL when there is none or another one failed.
static const struct atsi_plan_blob *take(struct verification *v) {
    pthread_mutex_lock(&v->lock);
    bool more = v->status == ATSI_OK && v->next < atsi_plan_file_n_blobs(v->file);
    const struct atsi_plan_blob *blob = more ? atsi_plan_file_blob(v->file, v->next++) : NULL;
    pthread_mutex_unlock(&v->lock);
    return blob;
}

static void report(struct verification *v, const struct atsi_plan_blob *blob, enum atsi_status status,
                   const struct atsi_error *err) {
    pthread_mutex_lock(&v->lock);
    if (status != ATSI_OK && v->status == ATSI_OK) {
        v->status = status;
        v->err = *err;
    }
    v->done_bytes += blob->stored_bytes;
    if (v->progress) v->progress->report(v->progress->user, v->done_bytes, v->total_bytes);
    pthread_mutex_unlock(&v->lock);
}

static void *verify_blobs(void *argument) {
    struct verification *v = argument;
    for (const struct atsi_plan_blob *blob; (blob = take(v));) {
        struct atsi_error err = {0};
        enum atsi_status status = atsi_plan_file_verify_blob(v->file, blob, &err);
        report(v, blob, status, &err);
    }
    return NULL;
}

// Starts helpers beside the calling thread; fewer than asked for are as good, only slower.
static uint32_t start_helpers(struct verification *v, pthread_t *helpers, uint32_t n) {
    uint32_t n_started = 0;
    while (n_started < n && pthread_create(&helpers[n_started], NULL, verify_blobs, v) == 0) n_started++;
    return n_started;
}

enum atsi_status atsi_plan_file_verify(const struct atsi_plan_file *file, uint32_t n_threads,
                                       const struct atsi_plan_progress *progress, struct atsi_error *err) {
    enum {
        MAX_HELPERS = 63
    }; // beyond, disks and memory set the pace
    struct verification v = {.file = file, .progress = progress};
    pthread_t helpers[MAX_HELPERS];
    if (!atsi_plan_file_has_weights(file)) return ATSI_OK;
    for (uint32_t i = 0; i < atsi_plan_file_n_blobs(file); i++)
        v.total_bytes += atsi_plan_file_blob(file, i)->stored_bytes;
    pthread_mutex_init(&v.lock, NULL);
    uint32_t n_wanted = n_threads > MAX_HELPERS ? MAX_HELPERS : n_threads ? n_threads - 1 : 0;
    uint32_t n_helpers = start_helpers(&v, helpers, n_wanted);
    verify_blobs(&v);
    for (uint32_t i = 0; i < n_helpers; i++) pthread_join(helpers[i], NULL);
    pthread_mutex_destroy(&v.lock);
    if (err && v.status != ATSI_OK) *err = v.err;
    return v.status;
}
