#include "formats/plan_format.h"

#include "formats/base/hash.h"
#include "formats/base/le.h"

// As in PNG: a first byte that no text has where line ends are rewritten, and line ends that show that they were.
const uint8_t atsi_plan_magic[8] = {0x89, 'A', 'T', 'S', 'P', '\r', '\n', 0x1A};

enum { // offsets in the header
    AT_VERSION = 8,
    AT_FLAGS = 12,
    AT_FILE_BYTES = 16,
    AT_SECTION_ALIGNMENT = 24,
    AT_N_BLOBS = 32,
    AT_PARTS = 64,
    PART_BYTES = 32
};

enum { // offsets in a record of the index
    AT_NAME = 0,
    AT_DTYPE = 80,
    AT_LAYOUT = 84,
    AT_NE = 88,
    AT_RAW_BYTES = 120,
    AT_SECTION = 128,
    AT_ENCODING = 132,
    AT_OFFSET = 136,
    AT_STORED_BYTES = 144,
    AT_CHECKSUM = 152
};
_Static_assert((int)AT_DTYPE == (int)ATSI_NAME_CAP && (int)AT_CHECKSUM + 8 == (int)PLAN_RECORD_BYTES,
               "the record has no gaps");

void atsi_plan_header_encode(const struct plan_header *header, uint8_t out[PLAN_HEADER_BYTES]) {
    memset(out, 0, PLAN_HEADER_BYTES);
    memcpy(out, atsi_plan_magic, sizeof atsi_plan_magic);
    atsi_store_le32(out + AT_VERSION, header->version);
    atsi_store_le32(out + AT_FLAGS, header->flags);
    atsi_store_le64(out + AT_FILE_BYTES, header->file_bytes);
    atsi_store_le64(out + AT_SECTION_ALIGNMENT, header->section_alignment);
    atsi_store_le32(out + AT_N_BLOBS, header->n_blobs);
    for (int i = 0; i < PLAN_N_PARTS; i++) {
        uint8_t *p = out + AT_PARTS + i * PART_BYTES;
        atsi_store_le64(p, header->parts[i].offset);
        atsi_store_le64(p + 8, header->parts[i].stored_bytes);
        atsi_store_le64(p + 16, header->parts[i].raw_bytes);
        atsi_store_le64(p + 24, header->parts[i].checksum);
    }
    atsi_store_le64(out + PLAN_HEADER_CHECKSUM_OFFSET, atsi_hash(out, PLAN_HEADER_CHECKSUM_OFFSET));
}

void atsi_plan_header_decode(const uint8_t in[PLAN_HEADER_BYTES], struct plan_header *header) {
    header->version = atsi_load_le32(in + AT_VERSION);
    header->flags = atsi_load_le32(in + AT_FLAGS);
    header->file_bytes = atsi_load_le64(in + AT_FILE_BYTES);
    header->section_alignment = atsi_load_le64(in + AT_SECTION_ALIGNMENT);
    header->n_blobs = atsi_load_le32(in + AT_N_BLOBS);
    for (int i = 0; i < PLAN_N_PARTS; i++) {
        const uint8_t *p = in + AT_PARTS + i * PART_BYTES;
        header->parts[i] = (struct plan_range){atsi_load_le64(p), atsi_load_le64(p + 8), atsi_load_le64(p + 16),
                                               atsi_load_le64(p + 24)};
    }
}

void atsi_plan_record_encode(const struct atsi_plan_blob *blob, uint8_t out[PLAN_RECORD_BYTES]) {
    const struct atsi_tensor *t = &blob->tensor;
    memset(out, 0, PLAN_RECORD_BYTES);
    memcpy(out + AT_NAME, t->name, strnlen(t->name, ATSI_NAME_CAP - 1));
    atsi_store_le32(out + AT_DTYPE, (uint32_t)t->dtype);
    atsi_store_le32(out + AT_LAYOUT, (uint32_t)t->layout);
    for (int d = 0; d < 4; d++) atsi_store_le64(out + AT_NE + 8 * d, t->ne[d]);
    atsi_store_le64(out + AT_RAW_BYTES, t->size_bytes);
    atsi_store_le32(out + AT_SECTION, (uint32_t)blob->section);
    atsi_store_le32(out + AT_ENCODING, (uint32_t)blob->encoding);
    atsi_store_le64(out + AT_OFFSET, blob->offset);
    atsi_store_le64(out + AT_STORED_BYTES, blob->stored_bytes);
    atsi_store_le64(out + AT_CHECKSUM, blob->checksum);
}

// Enumerations come out as they are: the reader checks them.
void atsi_plan_record_decode(const uint8_t in[PLAN_RECORD_BYTES], struct atsi_plan_blob *blob) {
    struct atsi_tensor *t = &blob->tensor;
    memcpy(t->name, in + AT_NAME, ATSI_NAME_CAP);
    t->dtype = (enum atsi_dtype)atsi_load_le32(in + AT_DTYPE);
    t->layout = (enum atsi_layout)atsi_load_le32(in + AT_LAYOUT);
    for (int d = 0; d < 4; d++) t->ne[d] = atsi_load_le64(in + AT_NE + 8 * d);
    t->size_bytes = atsi_load_le64(in + AT_RAW_BYTES);
    blob->section = (enum atsi_plan_section)atsi_load_le32(in + AT_SECTION);
    blob->encoding = (enum atsi_plan_encoding)atsi_load_le32(in + AT_ENCODING);
    blob->offset = atsi_load_le64(in + AT_OFFSET);
    blob->stored_bytes = atsi_load_le64(in + AT_STORED_BYTES);
    blob->checksum = atsi_load_le64(in + AT_CHECKSUM);
}

const char *atsi_plan_part_name(enum plan_part part) {
    static const char *const names[PLAN_N_PARTS] = {"manifest", "tensor index", "tokenizer", "resident", "pinned"};
    return names[part];
}
