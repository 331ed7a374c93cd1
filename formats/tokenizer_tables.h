// tokenizer_tables.h: the binary tokenizer tables of a plan, used in place.
//
// The planner writes one block (planner/tokenizer.h); the runtime maps it and looks things up without building
// anything. All integers are little-endian. The block is a header followed by sections, each aligned to 8 bytes; the
// header gives offset and size of each. Opening costs O(1): it checks every size and offset; what stands inside a
// section (ids, piece offsets, probe chains) is checked where it is used, so that a hostile block can give wrong ids
// but never a read outside the block, an endless loop or an id that is not below n_tokens.
//
// Two algorithms share everything but their first symbols:
//   ATSI_TOKENS_BPE  byte-level BPE. Pieces are the bytes that they stand for (the printable alphabet of GPT-2 is
//   undone
//                    by the planner); the first symbols of a word are its bytes.
//   ATSI_TOKENS_SPM  SentencePiece BPE. Pieces hold spaces where the model has U+2581; the first symbols are the
//                    characters, or byte tokens where a character is not in the vocabulary.
// In both a pair of neighbouring tokens joins when it is in the merge table; the lowest rank joins first, the leftmost
// of equals. (SentencePiece scores become dense ranks: the same score has the same rank.)
#ifndef ATSI_FORMATS_TOKENIZER_TABLES_H
#define ATSI_FORMATS_TOKENIZER_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/error.h"

#define ATSI_TOKEN_NONE          UINT32_MAX
#define ATSI_TOKENIZER_MAGIC     "ATSITOK1"
#define ATSI_TOKENIZER_MAX_PROBE 1024u // longest probe chain that a reader accepts

enum atsi_token_algorithm {
    ATSI_TOKENS_BPE = 1,
    ATSI_TOKENS_SPM = 2
};

enum atsi_tokenizer_flag {
    ATSI_TOKENIZER_ADD_BOS = 1,      // a prompt starts with bos_id
    ATSI_TOKENIZER_ADD_EOS = 2,      // a prompt ends with eos_id
    ATSI_TOKENIZER_NFC = 4,          // text is normalised to NFC before it is split
    ATSI_TOKENIZER_SPACE_PREFIX = 8, // SPM: a space is put before the text and after each matched special token
    ATSI_TOKENIZER_ALL_FLAGS = 15
};

enum atsi_token_kind {
    ATSI_TOKEN_NORMAL = 0,
    ATSI_TOKEN_UNKNOWN = 1,
    ATSI_TOKEN_CONTROL = 2, // matched in text only when asked
    ATSI_TOKEN_USER = 3,    // always matched in text
    ATSI_TOKEN_BYTE = 4,    // SPM byte fallback
    ATSI_TOKEN_UNUSED = 5   // padding of the vocabulary: never produced, never to be sampled
};
// A token's entry in ATSI_SECTION_INFO: its kind and these bits.
#define ATSI_TOKEN_KIND_MASK 7u
#define ATSI_TOKEN_EOG       8u  // ends generation
#define ATSI_TOKEN_WHOLE     16u // a word equal to this piece is this one token: no merging needed
#define ATSI_TOKEN_STRIPS    32u // a special token that swallows the white space behind it

enum atsi_tokenizer_section {
    ATSI_SECTION_PIECE_OFFSETS, // uint32_t[n_tokens + 1]: piece i is bytes [i, i + 1) of ATSI_SECTION_TEXT
    ATSI_SECTION_TEXT,          // bytes: all pieces, then other texts of special tokens
    ATSI_SECTION_INFO,          // uint8_t[n_tokens]: kind and bits
    ATSI_SECTION_BYTE_IDS,      // uint32_t[256]: the token of each byte, ATSI_TOKEN_NONE where there is none
    ATSI_SECTION_TOKEN_SLOTS,   // uint32_t[n_token_slots]: open-addressing hash of the pieces that words can become
    ATSI_SECTION_MERGE_SLOTS,   // struct atsi_token_merge[n_merge_slots]: open-addressing hash of the pairs
    ATSI_SECTION_SPECIALS,      // struct atsi_token_special[n_specials], sorted by text as unsigned bytes
    ATSI_SECTION_JOINED,        // SPM: 65536 bits, bit [a * 256 + b] set when the bytes a, b are neighbours in a piece
    ATSI_SECTION_PATTERNS,      // BPE: n_patterns NUL-terminated PCRE2 patterns, see runtime/tokenizer/pretokenizer.h
    ATSI_TOKENIZER_N_SECTIONS
};

struct atsi_token_merge {
    uint32_t left, right; // ATSI_TOKEN_NONE in an empty slot
    uint32_t rank;        // lowest joins first
    uint32_t id;          // what they become
};

struct atsi_token_special {
    uint32_t text_offset, text_size; // in ATSI_SECTION_TEXT; never empty
    uint32_t id;
};

struct atsi_tokenizer_header {
    char magic[8];
    uint64_t size_bytes; // of the whole block
    uint32_t n_tokens;
    uint32_t algorithm;                              // enum atsi_token_algorithm
    uint32_t flags;                                  // enum atsi_tokenizer_flag
    uint32_t bos_id, eos_id, unknown_id, padding_id; // ATSI_TOKEN_NONE where the model has none
    uint32_t longest_piece;                          // bytes; longer words are not looked up whole
    uint32_t n_token_slots, token_probes;            // a chain is at most *_probes slots long
    uint32_t n_merge_slots, merge_probes;
    uint32_t n_specials;
    uint32_t n_patterns;
    uint64_t special_first[4]; // bit b set when a special token starts with byte b
    struct {
        uint64_t offset, size; // bytes from the start of the block
    } section[ATSI_TOKENIZER_N_SECTIONS];
};

// A checked view. Borrows the block, which must outlive it; read-only, so any number of threads may use one.
struct atsi_tokenizer_tables {
    const struct atsi_tokenizer_header *header;
    const uint32_t *piece_offsets;
    const char *text;
    uint64_t text_size;
    const uint8_t *info;
    const uint32_t *byte_ids;
    const uint32_t *token_slots;
    const struct atsi_token_merge *merge_slots;
    const struct atsi_token_special *specials;
    const uint8_t *joined; // NULL for BPE
    const char *patterns;
    uint64_t patterns_size;
};

// Bytes that section `index` must have for these counts; 0 for ATSI_SECTION_TEXT and ATSI_SECTION_PATTERNS (any size).
uint64_t atsi_tokenizer_section_size(const struct atsi_tokenizer_header *header, enum atsi_tokenizer_section index);

// Checks the block and fills the view. `data` must be aligned to 8 bytes (a plan section is). ATSI_BAD_INPUT otherwise.
enum atsi_status atsi_tokenizer_tables_open(const void *data, size_t size, struct atsi_tokenizer_tables *tables,
                                            struct atsi_error *err);

// Bytes of a piece and their number; an id that is not below n_tokens has an empty piece.
const char *atsi_token_piece(const struct atsi_tokenizer_tables *tables, uint32_t id, size_t *size);

// Kind and bits of a token; ATSI_TOKEN_UNUSED for an id that is not below n_tokens.
uint8_t atsi_token_info(const struct atsi_tokenizer_tables *tables, uint32_t id);
enum atsi_token_kind atsi_token_kind(const struct atsi_tokenizer_tables *tables, uint32_t id);

// The token that exactly these bytes can become by merging, or ATSI_TOKEN_NONE.
uint32_t atsi_token_find(const struct atsi_tokenizer_tables *tables, const char *bytes, size_t size);

// The merge of two neighbours, or NULL. The id of what is returned is below n_tokens.
const struct atsi_token_merge *atsi_token_find_merge(const struct atsi_tokenizer_tables *tables, uint32_t left,
                                                     uint32_t right);

// The longest special token that `text` starts with (user-defined ones, and with `with_control` all of them), or
// ATSI_TOKEN_NONE. *match_size is set when one is found.
uint32_t atsi_token_match_special(const struct atsi_tokenizer_tables *tables, const char *text, size_t size,
                                  bool with_control, size_t *match_size);

// Hashes that writer and reader share: the first slot to look at.
uint32_t atsi_token_slot(const char *bytes, size_t size, uint32_t n_slots);
uint32_t atsi_token_merge_slot(uint32_t left, uint32_t right, uint32_t n_slots);

#endif
