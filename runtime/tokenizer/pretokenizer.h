// pretokenizer.h: cuts text into the words inside which tokens are merged.
//
// A pretokenizer has up to 16 patterns (PCRE2, UTF and UCP mode). The first cuts the text into its matches and what
// stands between them; the second cuts each of those pieces in the same way, seeing nothing outside the piece, and so
// on. What the last one leaves are the words.
#ifndef ATSI_RUNTIME_TOKENIZER_PRETOKENIZER_H
#define ATSI_RUNTIME_TOKENIZER_PRETOKENIZER_H

#include <stdint.h>

#include "formats/tokenizer_tables.h"

struct atsi_pretokenizer;

// Compiles the patterns of the tables. Read-only afterwards.
enum atsi_status atsi_pretokenizer_open(const struct atsi_tokenizer_tables *tables, struct atsi_pretokenizer **out,
                                        struct atsi_error *err);
void atsi_pretokenizer_close(struct atsi_pretokenizer *pretokenizer); // NULL fine

// Calls `word` for each word of `text` (well-formed UTF-8) in order, until it fails. Thread-safe.
typedef enum atsi_status atsi_word_function(void *context, const char *word, size_t size, struct atsi_error *err);
enum atsi_status atsi_pretokenizer_split(const struct atsi_pretokenizer *pretokenizer, const char *text, size_t size,
                                         atsi_word_function *word, void *context, struct atsi_error *err);

#endif
