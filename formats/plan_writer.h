// plan_writer.h: writes a plan file (plan_file.h) in one pass. It appears under its name when complete and not before
// (base/new_file.h). Memory use does not grow with the tensors: at most a few frames of 4 MiB are held.
//
//     create; { begin, append..., end } or declare for each tensor, all resident ones before the pinned ones; finish.
//
// After a failure only atsi_plan_writer_free() may follow. One thread at a time.
#ifndef ATSI_FORMATS_PLAN_WRITER_H
#define ATSI_FORMATS_PLAN_WRITER_H

#include "formats/plan_file.h"

struct atsi_plan_writer_options {
    uint64_t section_alignment; // a power of two from 4096 to 1 GiB; 0: 2 MiB
    bool no_weights;            // tensors are only declared
    bool shipped;               // marks the plan as compressed for transport; compressing is still asked for per tensor
};

// The section_alignment for tensors of so many bytes together: huge pages where they can pay; a small plan would mostly be
// the gaps in front of them.
static inline uint64_t atsi_plan_section_alignment(uint64_t tensor_bytes) {
    return tensor_bytes < UINT64_C(64) << 20 ? 4096 : 0;
}

struct atsi_plan_writer;

// `options` may be NULL.
enum atsi_status atsi_plan_writer_create(struct atsi_plan_writer **out, const char *path,
                                         const struct atsi_plan_writer_options *options, struct atsi_error *err);

// A tensor whose tensor->size_bytes bytes follow through append. With `compress` it is compressed if that saves more than 3 % of
// its first 4 MiB, else stored raw; what became of it stands in the blob. Tensors that the runtime maps must be raw.
enum atsi_status atsi_plan_writer_begin(struct atsi_plan_writer *writer, const struct atsi_tensor *tensor,
                                        enum atsi_plan_section section, bool compress, struct atsi_error *err);
enum atsi_status atsi_plan_writer_append(struct atsi_plan_writer *writer, const void *data, uint64_t size_bytes,
                                         struct atsi_error *err);
enum atsi_status atsi_plan_writer_end(struct atsi_plan_writer *writer, struct atsi_error *err);
// The three calls for a tensor that is in memory.
enum atsi_status atsi_plan_writer_add(struct atsi_plan_writer *writer, const struct atsi_tensor *tensor,
                                      enum atsi_plan_section section, bool compress, const void *data,
                                      struct atsi_error *err);
// A tensor of a plan without weights.
enum atsi_status atsi_plan_writer_declare(struct atsi_plan_writer *writer, const struct atsi_tensor *tensor,
                                          enum atsi_plan_section section, struct atsi_error *err);

uint32_t atsi_plan_writer_n_blobs(const struct atsi_plan_writer *writer);
// The tensors ended so far, for reports on ratios; valid until the next tensor.
const struct atsi_plan_blob *atsi_plan_writer_blob(const struct atsi_plan_writer *writer, uint32_t index);

// Adds manifest and tokenizer (size 0: none), completes the file and gives it its name.
enum atsi_status atsi_plan_writer_finish(struct atsi_plan_writer *writer, struct atsi_str manifest,
                                         struct atsi_str tokenizer, struct atsi_error *err);
// Frees everything; without a finish the temporary file is removed. NULL is fine.
void atsi_plan_writer_free(struct atsi_plan_writer *writer);

#endif
