// tokenizer_family.h: what the name in tokenizer.ggml.pre means.
#ifndef ATSI_PLANNER_TOKENIZER_FAMILY_H
#define ATSI_PLANNER_TOKENIZER_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#define ATSI_FAMILY_MAX_PATTERNS 6

struct atsi_tokenizer_family {
    const char *names;                              // separated by spaces
    const char *patterns[ATSI_FAMILY_MAX_PATTERNS]; // PCRE2, applied one after the other; NULL ends them
    bool nfc;                                       // text is normalised to NFC
    bool ignore_merges;                             // a word that is in the vocabulary is that token, reachable or not
    bool add_bos;                                   // when tokenizer.ggml.add_bos_token is absent
};

// NULL for a name that is not known.
const struct atsi_tokenizer_family *atsi_tokenizer_family_find(const char *name);

// Writes all known names, separated by spaces, cut to fit.
void atsi_tokenizer_family_names(char *out, size_t out_size);

#endif
