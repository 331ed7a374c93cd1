// synth_model: writes a GGUF model of a known shape with random weights, for measurements and tests that need no download.
//
//   synth_model SHAPE OUT.gguf [options]      synth_model --list
//
// The weights make no sense, but everything else is that of the real model: tensors, types, sizes, keys. docs/measuring.md says
// what the values are like. The file depends on the shape, the recipe and the seed alone.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/base/clock.h"
#include "tools/synth/writer.h"

static const char usage[] =
    "usage: synth_model SHAPE OUT.gguf [options]\n"
    "       synth_model --list                the shapes\n"
    "  --recipe NAME      q4_k_m, mxfp4 (experts; the rest Q8_0), dynamic (differs from layer to layer), or a tensor\n"
    "                     type for all matrices; default mxfp4 for gpt-oss, else q4_k_m\n"
    "  --layers N         another number of layers\n"
    "  --seed N           other weights (default 1)\n"
    "  --vocab FILE       the vocabulary of this GGUF file; default: bytes and padding\n"
    "  --threads N        default: all processors\n"
    "  --header-only      a sparse file of the right size without weights\n"
    "  --embd N --heads N --kv-heads N --head-dim N --ff N --experts N --used N --expert-ff N --vocab-size N --ctx N\n"
    "                     another size than the shape's\n";

struct options {
    const char *shape, *path, *recipe, *vocabulary;
    struct synth_shape sizes; // the overrides; 0: the shape's
    uint64_t seed;
    unsigned n_threads;
    bool help, list, header_only;
};

struct number_option {
    const char *name;
    uint32_t max;
    uint32_t *value;
};

static enum atsi_status parse_number(const char *name, const char *text, uint64_t max, uint64_t *out,
                                     struct atsi_error *err) {
    char *end = NULL;
    errno = 0;
    unsigned long long value = text ? strtoull(text, &end, 10) : 0;
    if (!text || end == text || *end || errno || strchr(text, '-') || value > max)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: expected a number up to %llu", name, (unsigned long long)max);
    *out = value;
    return ATSI_OK;
}

// A size of the shape. *known tells whether `name` is one.
static enum atsi_status parse_size(struct options *o, const char *name, const char *text, bool *known,
                                   struct atsi_error *err) {
    struct synth_shape *s = &o->sizes;
    const struct number_option sizes[] = {
        {"--layers", SYNTH_MAX_LAYERS, &s->n_layers},
        {"--embd", 1 << 17, &s->n_embd},
        {"--heads", 1 << 12, &s->n_heads},
        {"--kv-heads", 1 << 12, &s->n_kv_heads},
        {"--head-dim", 1 << 12, &s->head_dim},
        {"--ff", 1 << 20, &s->n_ff},
        {"--experts", 1 << 12, &s->n_experts},
        {"--used", 1 << 12, &s->n_used},
        {"--expert-ff", 1 << 20, &s->n_ff_exp},
        {"--vocab-size", 1 << 20, &s->n_vocab},
        {"--ctx", 1 << 28, &s->n_ctx},
    };
    *known = false;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (strcmp(sizes[i].name, name) != 0) continue;
        uint64_t value;
        *known = true;
        ATSI_TRY(parse_number(name, text, sizes[i].max, &value, err));
        if (value == 0) return atsi_fail(err, ATSI_BAD_INPUT, "%s: must be positive", name);
        *sizes[i].value = (uint32_t)value;
    }
    return ATSI_OK;
}

// An option that takes a value: *value is NULL at the end of the line.
static enum atsi_status parse_valued(struct options *o, const char *name, const char *value, struct atsi_error *err) {
    uint64_t number;
    bool known;
    ATSI_TRY(parse_size(o, name, value, &known, err));
    if (known) return ATSI_OK;
    if (!strcmp(name, "--seed")) return parse_number(name, value, UINT64_MAX, &o->seed, err);
    if (!strcmp(name, "--threads")) {
        ATSI_TRY(parse_number(name, value, 1024, &number, err));
        o->n_threads = (unsigned)number;
        return ATSI_OK;
    }
    const char **text = !strcmp(name, "--recipe") ? &o->recipe : !strcmp(name, "--vocab") ? &o->vocabulary : NULL;
    if (!text) return atsi_fail(err, ATSI_BAD_INPUT, "%s: no such option", name);
    if (!value) return atsi_fail(err, ATSI_BAD_INPUT, "%s: a value is missing", name);
    *text = value;
    return ATSI_OK;
}

static enum atsi_status parse_options(int argc, char **argv, struct options *o, struct atsi_error *err) {
    *o = (struct options){.seed = 1};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help"))
            o->help = true;
        else if (!strcmp(argv[i], "--list"))
            o->list = true;
        else if (!strcmp(argv[i], "--header-only"))
            o->header_only = true;
        else if (argv[i][0] == '-') {
            ATSI_TRY(parse_valued(o, argv[i], i + 1 < argc ? argv[i + 1] : NULL, err));
            i++;
        } else if (!o->shape)
            o->shape = argv[i];
        else if (!o->path)
            o->path = argv[i];
        else
            return atsi_fail(err, ATSI_BAD_INPUT, "%s: one word too many", argv[i]);
    }
    if (!o->help && !o->list && !o->path)
        return atsi_fail(err, ATSI_BAD_INPUT, "a shape and an output file are needed");
    return ATSI_OK;
}

static void replace(uint32_t *value, uint32_t override) {
    if (override) *value = override;
}

// The shape with the sizes of the command line. Parts that follow from others keep their proportion.
static enum atsi_status choose_shape(const struct options *o, struct synth_shape *s, struct atsi_error *err) {
    const struct synth_shape *known = synth_shape_find(o->shape), *sizes = &o->sizes;
    if (!known) return atsi_fail(err, ATSI_BAD_INPUT, "%s: no such shape; --list names them", o->shape);
    *s = *known;
    replace(&s->n_layers, sizes->n_layers);
    replace(&s->n_embd, sizes->n_embd);
    replace(&s->n_heads, sizes->n_heads);
    replace(&s->n_kv_heads, sizes->n_kv_heads);
    replace(&s->head_dim, sizes->head_dim);
    replace(&s->n_ff, sizes->n_ff);
    replace(&s->n_vocab, sizes->n_vocab);
    replace(&s->n_ctx, sizes->n_ctx);
    s->n_rot = (uint32_t)((uint64_t)known->n_rot * s->head_dim / known->head_dim);
    if (known->n_experts == 0 && (sizes->n_experts || sizes->n_used || sizes->n_ff_exp))
        return atsi_fail(err, ATSI_BAD_INPUT, "%s has no experts", o->shape);
    replace(&s->n_experts, sizes->n_experts);
    replace(&s->n_used, sizes->n_used);
    replace(&s->n_ff_exp, sizes->n_ff_exp);
    if (known->n_ff == known->n_ff_exp) s->n_ff = s->n_ff_exp; // families that have one width for both
    if (known->n_ff_exp) s->n_ff_shared = (uint32_t)((uint64_t)known->n_ff_shared * s->n_ff_exp / known->n_ff_exp);
    if (s->n_heads % s->n_kv_heads != 0 || s->n_rot % 2 != 0 || s->n_used > s->n_experts)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "the sizes do not fit: %u heads over %u key/value heads of %u, %u of %u experts", s->n_heads,
                         s->n_kv_heads, s->head_dim, s->n_used, s->n_experts);
    return ATSI_OK;
}

// Opens --vocab and takes the number of tokens from it.
static enum atsi_status open_vocabulary(const struct options *o, struct atsi_gguf **vocabulary, struct synth_shape *s,
                                        struct atsi_error *err) {
    enum {
        MIN_TOKENS = 258 // of a made vocabulary
    };
    if (!o->vocabulary) {
        if (s->n_vocab >= MIN_TOKENS) return ATSI_OK;
        return atsi_fail(err, ATSI_BAD_INPUT, "--vocab-size: at least %d", MIN_TOKENS);
    }
    struct atsi_gguf_array tokens;
    ATSI_TRY(atsi_gguf_open(vocabulary, o->vocabulary, err));
    ATSI_TRY(atsi_gguf_array(*vocabulary, "tokenizer.ggml.tokens", &tokens, err));
    if (tokens.n == 0 || tokens.n > 1 << 20)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: has no vocabulary", o->vocabulary);
    s->n_vocab = (uint32_t)tokens.n;
    return ATSI_OK;
}

static enum atsi_status make_file(const struct options *o, struct atsi_error *err) {
    struct atsi_gguf *vocabulary = NULL;
    struct synth_model model = {0};
    struct synth_recipe recipe;
    struct synth_shape shape;
    uint64_t size_bytes;
    long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned n_threads = o->n_threads ? o->n_threads : n_processors > 0 ? (unsigned)n_processors : 1;
    double start = atsi_clock_us();
    ATSI_TRY(choose_shape(o, &shape, err));
    const char *recipe_name = o->recipe ? o->recipe : !strcmp(shape.arch, "gpt-oss") ? "mxfp4" : "q4_k_m";
    ATSI_TRY(synth_recipe_parse(recipe_name, &recipe, err));
    enum atsi_status status = open_vocabulary(o, &vocabulary, &shape, err);
    if (status == ATSI_OK) status = synth_model_make(&model, &shape, &recipe, err);
    if (status == ATSI_OK)
        status =
            synth_write_file(o->path, &model, vocabulary, o->seed, o->header_only ? 0 : n_threads, &size_bytes, err);
    if (status == ATSI_OK)
        printf("%s: %s, %u layers, %s, %u tensors, %.2f GB in %.1f s\n", o->path, shape.name, shape.n_layers,
               recipe_name, model.n_tensors, (double)size_bytes * 1e-9, (atsi_clock_us() - start) * 1e-6);
    synth_model_free(&model);
    atsi_gguf_close(vocabulary);
    return status;
}

static void print_shapes(void) {
    for (size_t i = 0; synth_shape_at(i); i++) {
        const struct synth_shape *s = synth_shape_at(i);
        printf("%-20s %-10s %3u layers of width %5u", s->name, s->arch, s->n_layers, s->n_embd);
        if (s->n_experts) printf(", %u of %u experts", s->n_used, s->n_experts);
        printf("\n");
    }
}

int main(int argc, char **argv) {
    struct options options;
    struct atsi_error err = {0};
    if (argc < 2) {
        fputs(usage, stderr);
        return ATSI_BAD_INPUT;
    }
    enum atsi_status status = parse_options(argc, argv, &options, &err);
    if (status == ATSI_OK && options.help)
        fputs(usage, stdout);
    else if (status == ATSI_OK && options.list)
        print_shapes();
    else if (status == ATSI_OK)
        status = make_file(&options, &err);
    if (status != ATSI_OK) fprintf(stderr, "synth_model: %s\n", err.text);
    return status;
}
