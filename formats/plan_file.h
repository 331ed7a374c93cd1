// plan_file.h: the .atsp container, specified in docs/plan-format.md: a manifest (text; plan.h gives it meaning), the
// tokenizer's tables (bytes; opaque here) and the tensors, in two sections: `resident` is copied to the GPU at
// load, `pinned` stays in host memory, mapped. A tensor that must be mapped is stored raw, others may be compressed.
//
// Opening maps the file and checks header, tensor index and manifest: checksums, bounds, alignment, overlaps, shapes
// against sizes. Tensor bytes are checked by atsi_plan_file_verify() only. An open plan is immutable: any number of
// threads may read it.
#ifndef ATSI_FORMATS_PLAN_FILE_H
#define ATSI_FORMATS_PLAN_FILE_H

#include "formats/base/str.h"
#include "formats/program.h"

enum atsi_plan_section {
    ATSI_PLAN_RESIDENT = 0,
    ATSI_PLAN_PINNED = 1
};

enum atsi_plan_encoding {
    ATSI_PLAN_RAW = 0,
    ATSI_PLAN_ZSTD = 1,       // zstd frames
    ATSI_PLAN_ZSTD_PLANES = 2 // zstd frames over bytes sorted by significance (16 and 32-bit floats)
};

// A tensor of the file.
struct atsi_plan_blob {
    struct atsi_tensor tensor; // size_bytes: unpacked
    enum atsi_plan_section section;
    enum atsi_plan_encoding encoding;
    uint64_t offset;       // in the file, a multiple of 64; 0 in a plan without weights
    uint64_t stored_bytes; // 0 in a plan without weights
    uint64_t checksum;     // XXH3-64 of the stored bytes
};

struct atsi_plan_file;

// Errors name the file, the section or tensor, what was expected and what was found.
enum atsi_status atsi_plan_file_open(struct atsi_plan_file **out, const char *path, struct atsi_error *err);
// The same for a plan in memory, which must outlive the reader; `name` is for messages only.
enum atsi_status atsi_plan_file_open_memory(struct atsi_plan_file **out, const void *data, uint64_t size_bytes,
                                            const char *name, struct atsi_error *err);
void atsi_plan_file_close(struct atsi_plan_file *file); // NULL is fine

const char *atsi_plan_file_path(const struct atsi_plan_file *file);
uint64_t atsi_plan_file_size_bytes(const struct atsi_plan_file *file);
bool atsi_plan_file_has_weights(
    const struct atsi_plan_file *file); // false: tensors are listed, their bytes are not there
bool atsi_plan_file_is_shipped(const struct atsi_plan_file *file); // compressed for transport: unpack once before use
// Views that live as long as the file is open. The manifest is NUL-terminated besides.
struct atsi_str atsi_plan_file_manifest(const struct atsi_plan_file *file);
struct atsi_str atsi_plan_file_tokenizer(const struct atsi_plan_file *file); // size 0 when there is none

uint32_t atsi_plan_file_n_blobs(const struct atsi_plan_file *file);
const struct atsi_plan_blob *atsi_plan_file_blob(const struct atsi_plan_file *file, uint32_t index);   // in file order
const struct atsi_plan_blob *atsi_plan_file_find(const struct atsi_plan_file *file, const char *name); // NULL: absent

// A section in the mapping: base address and bytes (NULL, 0 when empty). The base is a multiple of the file's section alignment
// from the start of the mapping, 2 MiB unless the writer chose otherwise, at least 4096.
const uint8_t *atsi_plan_file_section(const struct atsi_plan_file *file, enum atsi_plan_section section,
                                      uint64_t *size_bytes);
// The stored bytes in the mapping: the tensor itself when encoding is ATSI_PLAN_RAW. NULL in a plan without weights.
const uint8_t *atsi_plan_file_stored(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob);

// Copies stored bytes, given by their address in the mapping, without mapping their pages (base/map.h); any number of threads at once. False
// when the address is none of this file, or the file was cut short.
bool atsi_plan_file_fetch(const struct atsi_plan_file *file, const void *stored, uint64_t size_bytes, void *dst);

// Copies a tensor to dst (tensor.size_bytes), a compressed one unpacked by n_threads threads (0 counts as 1). ATSI_FAILED in a plan
// without weights.
enum atsi_status atsi_plan_file_read(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob,
                                     uint32_t n_threads, void *dst, struct atsi_error *err);

enum {
    ATSI_PLAN_FRAME_BYTES = 4 << 20 // unpacked bytes of a zstd frame, at most
};
// One of the zstd frames that a compressed tensor is made of. Each stands alone, so any thread may unpack any of them.
struct atsi_plan_frame {
    uint64_t stored_offset, raw_offset; // in the stored and in the unpacked tensor
    uint32_t stored_bytes, raw_bytes;   // raw: at most ATSI_PLAN_FRAME_BYTES
};
// All frames of a compressed tensor in order, checked to be all of it; free() them.
enum atsi_status atsi_plan_file_frames(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob,
                                       struct atsi_plan_frame **frames, size_t *n_frames, struct atsi_error *err);
// What one thread holds to unpack frames with. Free it whether making it succeeds or not; NULL is fine.
struct atsi_plan_unpacker;
enum atsi_status atsi_plan_unpacker_new(struct atsi_plan_unpacker **out, struct atsi_error *err);
void atsi_plan_unpacker_free(struct atsi_plan_unpacker *unpacker);
// Unpacks one frame of the tensor to dst (frame->raw_bytes).
enum atsi_status atsi_plan_file_unpack(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob,
                                       const struct atsi_plan_frame *frame, struct atsi_plan_unpacker *unpacker,
                                       void *dst, struct atsi_error *err);

// The checksum of a tensor, and that it unpacks to its size.
enum atsi_status atsi_plan_file_verify_blob(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob,
                                            struct atsi_error *err);

// Told how many of all stored bytes are verified; calls come from several threads, one at a time.
struct atsi_plan_progress {
    void (*report)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
};
// Every tensor, by n_threads threads (0 counts as 1). `progress` may be NULL.
enum atsi_status atsi_plan_file_verify(const struct atsi_plan_file *file, uint32_t n_threads,
                                       const struct atsi_plan_progress *progress, struct atsi_error *err);

#endif
