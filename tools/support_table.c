// support_table: prints docs/models.md, the families and types that this version knows, from the tables of the code.
#include <stdio.h>

#include "kernels/layout.h"
#include "kernels/matmul.h"
#include "planner/arch/families.h"
#include "planner/cost.h"

static void print_families(void) {
    printf("## Families\n\n| `general.architecture` | models |\n|---|---|\n");
    for (size_t i = 0; atsi_family_at(i); i++)
        printf("| `%s` | %s |\n", atsi_family_at(i)->arch, atsi_family_at(i)->examples);
    printf("\nEvery family runs on every device, as a plan is made of operations that all of them have.\n\n");
}

static const char *input_text(enum atsi_input_kind kind) { return kind == ATSI_INPUT_INT8 ? "int8" : "float32"; }

// As placement sees it: a matrix of that type in an operation.
static bool runs_on_gpu(enum atsi_dtype dtype) {
    struct atsi_tensor tensor = {.dtype = dtype, .layout = atsi_layout_of(dtype)};
    struct atsi_program program = {.tensors = &tensor, .n_tensors = 1};
    struct atsi_op op = atsi_op_blank(ATSI_OP_MATMUL);
    op.tensor[0] = 0;
    return atsi_op_runs_on_gpu(&program, &op);
}

static void print_types(void) {
    printf("## Types of matrices\n\n| type | bits a weight | layout in a plan | activations that it meets "
           "| on a GPU |\n|---|---|---|---|---|\n");
    for (uint32_t id = 0; id < ATSI_DTYPE_LIMIT; id++) {
        const struct atsi_dtype_info *info = atsi_dtype_info(id);
        enum atsi_input_kind input = info ? atsi_matmul_input((enum atsi_dtype)id) : ATSI_INPUT_UNSUPPORTED;
        if (input == ATSI_INPUT_UNSUPPORTED) continue;
        printf("| %s | %.4g | %s | %s | %s |\n", info->name, 8.0 * info->block_bytes / info->block_elems,
               atsi_layout_name(atsi_layout_of((enum atsi_dtype)id)), input_text(input),
               runs_on_gpu((enum atsi_dtype)id) ? "yes" : "no");
    }
    printf("\nTables of tokens in a grid type (IQ1, IQ2, IQ3) stay on the CPU in every plan.\n");
    printf("\nKnown by size only, refused with their name when a model uses them:");
    const char *before = " ";
    for (uint32_t id = 0; id < ATSI_DTYPE_LIMIT; id++) {
        const struct atsi_dtype_info *info = atsi_dtype_info(id);
        if (!info || atsi_matmul_input((enum atsi_dtype)id) != ATSI_INPUT_UNSUPPORTED) continue;
        printf("%s%s", before, info->name);
        before = ", ";
    }
    printf(".\n");
}

int main(void) {
    printf("# Models and types\n\nMade by `build/tools/support_table > docs/models.md`; `make check` compares it with "
           "the code.\n\n");
    print_families();
    print_types();
    return 0;
}
