// plan_format.h: the bytes of a plan file (docs/plan-format.md), shared by reader and writer. Nobody else includes it.
#ifndef ATSI_FORMATS_PLAN_FORMAT_H
#define ATSI_FORMATS_PLAN_FORMAT_H

#include "formats/plan_file.h"

enum {
    PLAN_VERSION = 1,
    PLAN_HEADER_BYTES = 4096,
    PLAN_HEADER_CHECKSUM_OFFSET = PLAN_HEADER_BYTES - 8,
    PLAN_RECORD_BYTES = 160,     // of the tensor index
    PLAN_MAX_RATIO = 1 << 15,    // no zstd frame of 4 MiB packs tighter (one 4-byte block for each 128 KiB)
    PLAN_BLOB_ALIGNMENT = 64,    // what a reader may rely on
    PLAN_SMALL_ALIGNMENT = 256,  // what the writer gives: a GPU's transaction size
    PLAN_LARGE_ALIGNMENT = 4096, // and from PLAN_LARGE_BYTES on whole pages, for advice and direct reads per tensor
    PLAN_LARGE_BYTES = 64 << 10,
    PLAN_MIN_SECTION_ALIGNMENT = 4096,
    PLAN_MAX_SECTION_ALIGNMENT = 1 << 30,
    PLAN_MAX_MANIFEST_BYTES = 32 << 20
};

enum plan_flag {
    PLAN_FLAG_NO_WEIGHTS = 1,
    PLAN_FLAG_SHIPPED = 2
};

enum plan_part {
    PLAN_PART_MANIFEST,
    PLAN_PART_INDEX,
    PLAN_PART_TOKENIZER,
    PLAN_PART_RESIDENT, // + enum atsi_plan_section
    PLAN_PART_PINNED,
    PLAN_N_PARTS
};

struct plan_range {
    uint64_t offset, stored_bytes, raw_bytes, checksum;
};

struct plan_header {
    uint32_t version, flags;
    uint64_t file_bytes, section_alignment;
    uint32_t n_blobs;
    struct plan_range parts[PLAN_N_PARTS];
};

extern const uint8_t atsi_plan_magic[8];

void atsi_plan_header_encode(const struct plan_header *header, uint8_t out[PLAN_HEADER_BYTES]); // with its checksum
void atsi_plan_header_decode(const uint8_t in[PLAN_HEADER_BYTES], struct plan_header *header);
void atsi_plan_record_encode(const struct atsi_plan_blob *blob, uint8_t out[PLAN_RECORD_BYTES]);
void atsi_plan_record_decode(const uint8_t in[PLAN_RECORD_BYTES], struct atsi_plan_blob *blob);
const char *atsi_plan_part_name(enum plan_part part);

// ---- plan_codec.c ------------------------------------------------------------------------------------------------

// Byte planes that a type is split into before compression: 2 or 4, the element size, for floats; 1 (no splitting) for
// others.
uint32_t atsi_plan_n_planes(enum atsi_dtype dtype);

struct plan_encoder; // one frame after another
enum atsi_status atsi_plan_encoder_new(struct plan_encoder **out, struct atsi_error *err);
void atsi_plan_encoder_free(struct plan_encoder *encoder); // NULL is fine
// Packs up to ATSI_PLAN_FRAME_BYTES (a multiple of n_planes) into one frame with content size. The result lives until the next call.
enum atsi_status atsi_plan_encode_frame(struct plan_encoder *encoder, const void *data, size_t size_bytes,
                                        uint32_t n_planes, int level, struct atsi_str *frame, struct atsi_error *err);

// The frames of a compressed tensor, by their headers, checked to be exactly the tensor; free() them. ATSI_BAD_INPUT without a name.
enum atsi_status atsi_plan_find_frames(const struct atsi_plan_blob *blob, const uint8_t *stored,
                                       struct atsi_plan_frame **frames, size_t *n_frames, struct atsi_error *err);
// Unpacks one of them to dst, or only checks it when dst is NULL.
enum atsi_status atsi_plan_unpack_frame(struct atsi_plan_unpacker *unpacker, const struct atsi_plan_blob *blob,
                                        const uint8_t *stored, const struct atsi_plan_frame *frame, uint8_t *dst,
                                        struct atsi_error *err);

// Unpacks a tensor's frames to dst (tensor.size_bytes), or only checks them when dst is NULL, by n_threads threads (0 counts
// as 1). ATSI_BAD_INPUT without a name when they do not unpack to exactly that.
enum atsi_status atsi_plan_decode(const struct atsi_plan_blob *blob, const uint8_t *stored, uint32_t n_threads,
                                  uint8_t *dst, struct atsi_error *err);

#endif
