// plan_builder.h: small plan files for tests, and the fields of a plan file by the offsets of docs/plan-format.md.
#ifndef ATSI_TESTS_SUPPORT_PLAN_BUILDER_H
#define ATSI_TESTS_SUPPORT_PLAN_BUILDER_H

#include "formats/plan_writer.h"
#include "tests/support/bytes.h"

enum { // from the specification, not from the reader
    PB_HEADER_BYTES = 4096,
    PB_AT_VERSION = 8,
    PB_AT_FLAGS = 12,
    PB_AT_FILE_BYTES = 16,
    PB_AT_SECTION_ALIGNMENT = 24,
    PB_AT_N_BLOBS = 32,
    PB_AT_PARTS = 64,
    PB_PART_BYTES = 32,
    PB_RECORD_BYTES = 160
};
enum pb_part {
    PB_MANIFEST,
    PB_INDEX,
    PB_TOKENIZER,
    PB_RESIDENT,
    PB_PINNED
};

extern const char pb_manifest[];
extern const char pb_tokenizer[];

// An atsi_tensor in the plain layout; ne1, ne2 as given.
struct atsi_tensor pb_tensor(const char *name, enum atsi_dtype dtype, uint64_t ne0, uint64_t ne1, uint64_t ne2);
// Bytes that compress (weights drawn from a bell curve, as F16 or F32) or do not (`dtype` of bits).
void pb_fill(const struct atsi_tensor *tensor, uint32_t seed, uint8_t *out);

// Writes a sound plan of five tensors, raw and compressed, with sections aligned to 4096.
enum atsi_status pb_write(const char *path, bool no_weights, struct atsi_error *err);
// The plan of pb_write in memory.
struct bytes pb_plan(bool no_weights);

uint64_t pb_get(const struct bytes *plan, size_t offset, unsigned size);
size_t pb_part_offset(const struct bytes *plan, enum pb_part part); // of its bytes
size_t pb_record_offset(const struct bytes *plan, uint32_t index);  // in the tensor index
// Makes the checksums of header, manifest, index and tokenizer right again after a change, as far as their ranges lie in the file.
void pb_fix_checksums(struct bytes *plan);

#endif
