// bench_tokenizer [MODEL.gguf TEXT]: how fast tables are built, opened and used, in CPU time of the one thread.
// By default the demo model on the project's own English (its documents, repeated to 4 MB).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/sort.h"
#include "planner/tokenizer.h"
#include "runtime/tokenizer/tokenizer.h"

enum {
    N_RUNS = 5,
    TEXT_BYTES = 4 << 20
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void stop_on(enum atsi_status status, const struct atsi_error *err) {
    if (status == ATSI_OK) return;
    fprintf(stderr, "bench_tokenizer: %s\n", err->text);
    exit((int)status);
}

static void append_file(struct atsi_bytes *text, const char *path) {
    struct atsi_error err = {.text = ""};
    char buffer[65536];
    FILE *f = fopen(path, "rb");
    if (!f) return;
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;)
        stop_on(atsi_bytes_append(text, buffer, n, &err), &err);
    fclose(f);
}

static void repeat(struct atsi_bytes *text, size_t size) {
    struct atsi_error err = {.text = ""};
    for (size_t once = text->size; once && text->size < size;) {
        struct atsi_bytes copy = {0};
        stop_on(atsi_bytes_append(&copy, text->data, once, &err), &err);
        stop_on(atsi_bytes_append(text, copy.data, copy.size, &err), &err);
        atsi_bytes_free(&copy);
    }
}

static void *build(const char *path, size_t *size) {
    struct atsi_error err = {.text = ""};
    struct atsi_gguf *gguf;
    struct atsi_vocabulary vocabulary;
    void *block;
    stop_on(atsi_gguf_open(&gguf, path, &err), &err);
    stop_on(atsi_vocabulary_read(gguf, &vocabulary, &err), &err);
    double start = now_s();
    stop_on(atsi_tokenizer_build(&vocabulary, &block, size, &err), &err);
    printf("%s: %llu tokens; tables of %.1f MiB built in %.3f s", path, (unsigned long long)vocabulary.n_tokens,
           (double)*size / (1 << 20), now_s() - start);
    atsi_vocabulary_free(&vocabulary);
    atsi_gguf_close(gguf);
    return block;
}

int main(int argc, char **argv) {
    static const char *const own_texts[] = {"README.md", "CONTRIBUTING.md", "docs/measuring.md", "docs/plan-format.md",
                                            "docs/tokenizer.md"};
    struct atsi_bytes text = {0};
    if (argc == 3) append_file(&text, argv[2]);
    for (size_t i = 0; argc != 3 && i < sizeof own_texts / sizeof *own_texts; i++) append_file(&text, own_texts[i]);
    repeat(&text, TEXT_BYTES);

    struct atsi_error err = {.text = ""};
    size_t size;
    void *block = build(argc == 3 ? argv[1] : "plans/demo.gguf", &size);
    struct atsi_tokenizer *tokenizer;
    double start = now_s();
    stop_on(atsi_tokenizer_open(&tokenizer, block, size, &err), &err);
    printf(", opened in %.0f us\n", (now_s() - start) * 1e6);

    double times_s[N_RUNS];
    struct atsi_token_list list = {0};
    for (int run = 0; run < N_RUNS; run++) {
        list.n_ids = 0;
        start = now_s();
        stop_on(atsi_tokenizer_encode(tokenizer, text.data, text.size, 0, &list, &err), &err);
        times_s[run] = now_s() - start;
    }
    atsi_sort_doubles(times_s, N_RUNS);
    double megabytes = (double)text.size / 1e6;
    printf("encode: median %.1f MB/s (%.1f to %.1f over %d runs), %zu bytes, %.2f bytes a token\n",
           megabytes / times_s[N_RUNS / 2], megabytes / times_s[N_RUNS - 1], megabytes / times_s[0], N_RUNS, text.size,
           (double)text.size / (double)list.n_ids);
    atsi_token_list_free(&list);
    atsi_tokenizer_close(tokenizer);
    atsi_bytes_free(&text);
    free(block);
    return 0;
}
