#include "runtime/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PATTERNS 16

struct atsi_pretokenizer {
    uint32_t n_patterns;
    pcre2_code *patterns[MAX_PATTERNS];
};

// One call's state: what the recursion over patterns hands down.
struct split {
    const struct atsi_pretokenizer *pretokenizer;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    atsi_word_function *word;
    void *context;
};

static enum atsi_status compile(const char *pattern, pcre2_code **out, struct atsi_error *err) {
    int error;
    PCRE2_SIZE at;
    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                         &error, &at, NULL);
    if (!*out) {
        char why[120];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer pattern \"%.120s\": %s at %zu", pattern, why, (size_t)at);
    }
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); // where it is refused, matching interprets the pattern
    return ATSI_OK;
}

enum atsi_status atsi_pretokenizer_open(const struct atsi_tokenizer_tables *tables, struct atsi_pretokenizer **out,
                                        struct atsi_error *err) {
    *out = NULL;
    struct atsi_pretokenizer *p = calloc(1, sizeof *p);
    if (!p) return atsi_out_of_memory(err);
    enum atsi_status status = ATSI_OK;
    const char *pattern = tables->patterns;
    for (uint32_t i = 0; i < tables->header->n_patterns && i < MAX_PATTERNS && status == ATSI_OK; i++) {
        status = compile(pattern, &p->patterns[i], err);
        p->n_patterns = i + 1;
        pattern += strlen(pattern) + 1;
    }
    if (status == ATSI_OK)
        *out = p;
    else
        atsi_pretokenizer_close(p);
    return status;
}

void atsi_pretokenizer_close(struct atsi_pretokenizer *pretokenizer) {
    if (!pretokenizer) return;
    for (uint32_t i = 0; i < pretokenizer->n_patterns; i++) pcre2_code_free(pretokenizer->patterns[i]);
    free(pretokenizer);
}

// Finds the next match that is not empty. *begin == size when there is none.
static enum atsi_status find(const struct split *s, uint32_t level, const char *text, size_t size, size_t from,
                             size_t *begin, size_t *end, struct atsi_error *err) {
    const pcre2_code *pattern = s->pretokenizer->patterns[level];
    uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int n = pcre2_match(pattern, (PCRE2_SPTR)text, size, from, options, s->match, s->limits);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter keeps its state on the heap
        n = pcre2_match(pattern, (PCRE2_SPTR)text, size, from, options | PCRE2_NO_JIT, s->match, s->limits);
    *begin = *end = size;
    if (n == PCRE2_ERROR_NOMATCH) return ATSI_OK;
    if (n < 0) {
        char why[120];
        pcre2_get_error_message(n, (PCRE2_UCHAR *)why, sizeof why);
        return atsi_fail(err, ATSI_FAILED, "splitting a text of %zu bytes into words: %s", size, why);
    }
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(s->match);
    *begin = ends[0];
    *end = ends[1];
    // \K or a look-behind in a crafted pattern could give a match that does not move on.
    if (*begin < from || *end <= *begin || *end > size)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer pattern %u matches outside its text", level);
    return ATSI_OK;
}

static enum atsi_status split_piece(const struct split *s, uint32_t level, const char *text, size_t size,
                                    struct atsi_error *err) {
    if (size == 0) return ATSI_OK;
    if (level == s->pretokenizer->n_patterns) return s->word(s->context, text, size, err);
    for (size_t from = 0; from < size;) {
        size_t begin, end;
        ATSI_TRY(find(s, level, text, size, from, &begin, &end, err));
        ATSI_TRY(split_piece(s, level + 1, text + from, begin - from, err));
        ATSI_TRY(split_piece(s, level + 1, text + begin, end - begin, err));
        from = end;
    }
    return ATSI_OK;
}

enum atsi_status atsi_pretokenizer_split(const struct atsi_pretokenizer *pretokenizer, const char *text, size_t size,
                                         atsi_word_function *word, void *context, struct atsi_error *err) {
    struct split s = {pretokenizer, pcre2_match_data_create(1, NULL), pcre2_match_context_create(NULL), word, context};
    enum atsi_status status;
    if (s.match && s.limits) {
        // A long word costs a step a character and again on the way back; a crafted pattern must still come to an end.
        uint64_t limit = 100000 + 64 * (uint64_t)size;
        pcre2_set_match_limit(s.limits, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
        status = split_piece(&s, 0, text, size, err);
    } else {
        status = atsi_fail(err, ATSI_FAILED, "out of memory to split text into words");
    }
    pcre2_match_data_free(s.match);
    pcre2_match_context_free(s.limits);
    return status;
}
