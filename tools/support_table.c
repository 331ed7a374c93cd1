// support_table: prints docs/models.md from the code: for every family and tensor type a model is made (its header alone), lowered, and
// asked which of its units run where.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/base/temp_file.h"
#include "kernels/layout.h"
#include "kernels/matmul.h"
#include "planner/arch/families.h"
#include "planner/cost.h"
#include "planner/lower.h"
#include "tools/synth/writer.h"

enum {
    N_LAYERS = 8, // every kind of layer of every family is among them
    N_VOCAB = 512 // the tokens make no difference
};

// What of a model in one type runs.
enum support {
    NO_KERNELS, // the type is known by its size only
    REFUSED,    // by the family
    EVERYWHERE,
    ALL_BUT_TABLE, // the table of tokens stays on the CPU
    IN_PART,       // more than that
    N_SUPPORTS
};

static enum support support_of(const struct atsi_program *program) {
    bool table = true;
    for (uint32_t i = 0; i < program->n_units; i++) {
        const struct atsi_unit *unit = &program->units[i];
        if (atsi_unit_runs_on_gpu(program, unit)) continue;
        if (unit->kind != ATSI_UNIT_EMBED) return IN_PART;
        table = false;
    }
    return table ? EVERYWHERE : ALL_BUT_TABLE;
}

static const struct synth_shape *shape_of_family(const char *arch) {
    for (size_t i = 0; synth_shape_at(i); i++)
        if (!strcmp(synth_shape_at(i)->arch, arch)) return synth_shape_at(i);
    return NULL;
}

static enum atsi_status write_header(const char *path, const char *arch, enum atsi_dtype dtype,
                                     struct atsi_error *err) {
    const struct synth_recipe recipe = {SYNTH_ONE_TYPE, dtype};
    const struct synth_shape *known = shape_of_family(arch);
    struct synth_model model = {0};
    uint64_t size_bytes;
    if (!known) return atsi_fail(err, ATSI_FAILED, "tools/synth/shape.c has no shape of the family %s", arch);
    struct synth_shape shape = *known;
    shape.n_layers = N_LAYERS;
    shape.n_vocab = N_VOCAB;
    enum atsi_status status = synth_model_make(&model, &shape, &recipe, err);
    if (status == ATSI_OK) status = synth_write_file(path, &model, NULL, 1, 0, &size_bytes, err);
    synth_model_free(&model);
    return status;
}

static enum atsi_status find_support(const char *path, const char *arch, enum atsi_dtype dtype, enum support *out,
                                     struct atsi_error *err) {
    struct atsi_gguf *gguf = NULL;
    struct atsi_lowered lowered = {0};
    ATSI_TRY(write_header(path, arch, dtype, err));
    ATSI_TRY(atsi_gguf_open(&gguf, path, err));
    enum atsi_status status = atsi_lower(gguf, &(struct atsi_lower_options){0}, &lowered, err);
    *out = status == ATSI_OK ? support_of(&lowered.program) : REFUSED;
    atsi_lowered_free(&lowered);
    atsi_gguf_close(gguf);
    return status == ATSI_BAD_INPUT ? ATSI_OK : status;
}

static bool has_kernels(uint32_t id) {
    return atsi_dtype_info(id) && atsi_matmul_input((enum atsi_dtype)id) != ATSI_INPUT_UNSUPPORTED;
}

static bool has_type_with(const enum support *support, enum support wanted) {
    for (uint32_t id = 0; id < ATSI_DTYPE_LIMIT; id++)
        if (support[id] == wanted) return true;
    return false;
}

// A line for each kind of support that some type has.
static void print_family(const struct atsi_family *family, const enum support *support) {
    static const char *const devices[N_SUPPORTS] = {[REFUSED] = "no | no",
                                                    [EVERYWHERE] = "all | all",
                                                    [ALL_BUT_TABLE] = "all | all but the table of tokens",
                                                    [IN_PART] = "all | in part"};
    const char *models = family->examples; // in the first line
    for (enum support kind = REFUSED; kind < N_SUPPORTS; kind++) {
        if (!has_type_with(support, kind)) continue;
        printf("| `%s` | %s |", family->arch, models);
        for (uint32_t id = 0; id < ATSI_DTYPE_LIMIT; id++)
            if (support[id] == kind) printf(" %s", atsi_dtype_name((enum atsi_dtype)id));
        printf(" | %s |\n", devices[kind]);
        models = "";
    }
}

static enum atsi_status print_families(const char *path, struct atsi_error *err) {
    printf("## Families, types of matrices, devices\n\n"
           "What runs of a model whose matrices have that type: a model of each family and type is lowered for this "
           "table.\n"
           "A GPU is `cuda` or `sim`; a plan mixes types and devices as it likes.\n\n"
           "| `general.architecture` | models | types | on a CPU | on a GPU |\n|---|---|---|---|---|\n");
    for (size_t i = 0; atsi_family_at(i); i++) {
        enum support support[ATSI_DTYPE_LIMIT] = {NO_KERNELS};
        const struct atsi_family *family = atsi_family_at(i);
        for (uint32_t id = 0; id < ATSI_DTYPE_LIMIT; id++)
            if (has_kernels(id)) ATSI_TRY(find_support(path, family->arch, (enum atsi_dtype)id, &support[id], err));
        print_family(family, support);
    }
    return ATSI_OK;
}

static void print_types(void) {
    printf(
        "\n## Types\n\n| type | bits a weight | layout in a plan | activations that it meets |\n|---|---|---|---|\n");
    for (uint32_t id = 0; id < ATSI_DTYPE_LIMIT; id++) {
        if (!has_kernels(id)) continue;
        const struct atsi_dtype_info *info = atsi_dtype_info(id);
        bool is_int8 = atsi_matmul_input((enum atsi_dtype)id) == ATSI_INPUT_INT8;
        printf("| %s | %.4g | %s | %s |\n", info->name, 8.0 * info->block_bytes / info->block_elems,
               atsi_layout_name(atsi_layout_of((enum atsi_dtype)id)), is_int8 ? "int8" : "float32");
    }
    printf("\nKnown by size only, refused with their name when a model uses them:");
    const char *before = " ";
    for (uint32_t id = 0; id < ATSI_DTYPE_LIMIT; id++) {
        if (!atsi_dtype_info(id) || has_kernels(id)) continue;
        printf("%s%s", before, atsi_dtype_name((enum atsi_dtype)id));
        before = ", ";
    }
    printf(".\n");
}

int main(void) {
    char path[ATSI_TEMP_PATH_CAP]; // of one header after the other
    struct atsi_error err = {0};
    // In memory where that can be and nothing else is said: some hundred headers are written and flushed.
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);
    enum atsi_status status = atsi_temp_file(path, &err);
    if (status == ATSI_OK) {
        printf(
            "# Models and types\n\nMade by `build/tools/support_table > docs/models.md`; `make check` compares it with "
            "the code.\n\n");
        status = print_families(path, &err);
        unlink(path);
    }
    if (status == ATSI_OK) print_types();
    if (status != ATSI_OK) fprintf(stderr, "support_table: %s\n", err.text);
    return status;
}
