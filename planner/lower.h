// lower.h: a GGUF model becomes a program and, for every tensor of it, the recipe that packing follows.
#ifndef ATSI_PLANNER_LOWER_H
#define ATSI_PLANNER_LOWER_H

#include "formats/gguf.h"
#include "formats/program.h"

// How a tensor of the program is made. The program's tensor says type, layout and shape of the result; a float32 tensor with
// an F16 or BF16 source is widened.
struct atsi_recipe {
    const struct atsi_gguf_tensor *source; // NULL: the tensor is `table`
    uint32_t *row_order; // [ne[1]]: row r of every packed matrix is row row_order[r] of the source; NULL: r
    float *table;        // values of a tensor that the planner made
};

struct atsi_lowered {
    struct atsi_program program;
    struct atsi_recipe *recipes; // [n_recipes], one for each tensor of the program
    uint32_t n_recipes;
    char arch[ATSI_NAME_CAP];
    uint32_t n_ctx_train; // context_length of the file
    uint32_t n_ctx;       // the context that the tables were made for
    uint64_t n_params;    // elements of the source tensors in use
    bool tied;            // the head uses the token embedding
    char *remarks;        // lines for the user ("" when there are none): tensors left out, values assumed
};

struct atsi_lower_options {
    uint32_t n_ctx; // planned context; 0: the model's, at most ATSI_DEFAULT_CTX
};
enum {
    ATSI_DEFAULT_CTX = 4096
};

// Lowers the model of a family in planner/arch/families.c. The GGUF must stay open while the result is in use. ATSI_BAD_INPUT for an
// unknown family (the message lists the known ones), a bad or missing hyperparameter, missing tensors (by name) and shapes
// that do not fit. The program passes atsi_program_check. Free with atsi_lowered_free whether it succeeds or not.
enum atsi_status atsi_lower(const struct atsi_gguf *gguf, const struct atsi_lower_options *options,
                            struct atsi_lowered *out, struct atsi_error *err);
void atsi_lowered_free(struct atsi_lowered *lowered); // NULL fine

#endif
