// tokenize MODEL.gguf [--special]: token ids of many texts, by the model's own vocabulary.
// Each line of standard input is one text in hexadecimal (so that any bytes can be given); its ids come out on one line.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/tokenizer.h"
#include "runtime/tokenizer/tokenizer.h"

static enum atsi_status build_tables(const char *path, void **block, size_t *size, struct atsi_error *err) {
    struct atsi_gguf *gguf;
    ATSI_TRY(atsi_gguf_open(&gguf, path, err));
    struct atsi_vocabulary vocabulary;
    enum atsi_status status = atsi_vocabulary_read(gguf, &vocabulary, err);
    if (status == ATSI_OK && !vocabulary.model.data)
        status = atsi_fail(err, ATSI_BAD_INPUT, "%s has no tokenizer", path);
    if (status == ATSI_OK) status = atsi_tokenizer_build(&vocabulary, block, size, err);
    atsi_vocabulary_free(&vocabulary);
    atsi_gguf_close(gguf);
    return status;
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

// Turns a line into bytes in place; returns their number.
static size_t read_hex(char *line) {
    size_t n = 0;
    for (; hex_digit(line[2 * n]) >= 0 && hex_digit(line[2 * n + 1]) >= 0; n++)
        line[n] = (char)(hex_digit(line[2 * n]) * 16 + hex_digit(line[2 * n + 1]));
    return n;
}

static enum atsi_status encode_lines(const struct atsi_tokenizer *tokenizer, unsigned flags, struct atsi_error *err) {
    char *line = NULL;
    size_t line_cap = 0;
    struct atsi_token_list list = {0};
    enum atsi_status status = ATSI_OK;
    while (status == ATSI_OK && getline(&line, &line_cap, stdin) >= 0) {
        list.n_ids = 0;
        status = atsi_tokenizer_encode(tokenizer, line, read_hex(line), flags, &list, err);
        for (size_t i = 0; i < list.n_ids; i++) printf("%s%" PRIu32, i ? " " : "", list.ids[i]);
        putchar('\n');
    }
    free(line);
    atsi_token_list_free(&list);
    return status;
}

int main(int argc, char **argv) {
    bool special = argc == 3 && strcmp(argv[2], "--special") == 0;
    if (argc != 2 && !special) {
        fprintf(stderr, "usage: tokenize MODEL.gguf [--special] < lines of hexadecimal\n");
        return ATSI_BAD_INPUT;
    }
    struct atsi_error err = {.text = ""};
    void *block = NULL;
    size_t size;
    struct atsi_tokenizer *tokenizer = NULL;
    enum atsi_status status = build_tables(argv[1], &block, &size, &err);
    if (status == ATSI_OK) status = atsi_tokenizer_open(&tokenizer, block, size, &err);
    if (status == ATSI_OK) status = encode_lines(tokenizer, special ? ATSI_ENCODE_SPECIAL : 0, &err);
    if (status != ATSI_OK) fprintf(stderr, "tokenize: %s\n", err.text);
    atsi_tokenizer_close(tokenizer);
    free(block);
    return (int)status;
}
