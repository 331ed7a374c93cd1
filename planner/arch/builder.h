// builder.h: what a family's lowering writes with: tensors by name, operations, units.
//
// The builder keeps the first failure and everything after it does nothing, so that family files read as a list of what is
// computed. Required tensors that are missing are collected, so that one message names them all. atsi_lower() reports both.
#ifndef ATSI_PLANNER_ARCH_BUILDER_H
#define ATSI_PLANNER_ARCH_BUILDER_H

#include <stdio.h>

#include "planner/arch/hparams.h"
#include "planner/lower.h"

struct atsi_builder {
    const struct atsi_gguf *gguf;
    const char *arch;
    struct atsi_hparams hp;
    struct atsi_lowered *out;
    int32_t layer;       // of the tensor names asked for; ATSI_NONE outside the layers
    int32_t router_unit; // holds the last router
    char missing[320];   // names of missing tensors, separated by ", "
    uint32_t n_missing;
    FILE *remarks;
    enum atsi_status status;
    struct atsi_error *err;
};

// Records a failure unless there is one.
void atsi_build_fail(struct atsi_builder *b, enum atsi_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// ---- keys of the family -------------------------------------------------------------------------------------------
// "ARCH.suffix", or `fallback` when absent. A value outside [min, max] is recorded; a fallback outside it makes the key
// required.
uint32_t atsi_build_count(struct atsi_builder *b, const char *suffix, uint32_t fallback, uint32_t min, uint32_t max);
bool atsi_build_flag(struct atsi_builder *b, const char *suffix, bool fallback);
// One real number more than min and at most max.
double atsi_build_number(struct atsi_builder *b, const char *suffix, double fallback, double min, double max);

// ---- tensors ------------------------------------------------------------------------------------------------------
enum atsi_need {
    ATSI_OPTIONAL = 0,
    ATSI_REQUIRED = 1
};

// Index of the tensor "blk.LAYER.suffix" (or "suffix" outside the layers) with the shape [ne0, ne1, ne2] in its own type, or
// ATSI_NONE. Asking twice gives the same index.
int32_t atsi_build_weight(struct atsi_builder *b, enum atsi_need need, const char *suffix, uint64_t ne0, uint64_t ne1,
                          uint64_t ne2);
// The same for a matrix whose rows are packed in another order: row r is row_order[r] of the file. Takes row_order (from
// malloc, [ne1]); NULL records that memory ran out.
int32_t atsi_build_weight_reordered(struct atsi_builder *b, const char *suffix, uint64_t ne0, uint64_t ne1,
                                    uint32_t *row_order);
// The same for a small tensor that is float32 in the plan: norms, biases, sinks, convolution kernels.
int32_t atsi_build_table(struct atsi_builder *b, enum atsi_need need, const char *suffix, uint64_t ne0, uint64_t ne1);
// A float32 vector that the planner computed (copied). An equal one that is there is used again. Named "stem.N".
int32_t atsi_build_made(struct atsi_builder *b, const char *stem, const float *values, uint32_t n);
// Whether the file has the tensor of that name, in the current layer.
bool atsi_build_has(const struct atsi_builder *b, const char *suffix);
// Records the tensor as missing when the file has none of that name: for those that are read with atsi_build_source.
void atsi_build_require(struct atsi_builder *b, const char *suffix);
// The file's tensor, for its shape or values; NULL when absent.
const struct atsi_gguf_tensor *atsi_build_source(const struct atsi_builder *b, const char *suffix);

// ---- buffers and views --------------------------------------------------------------------------------------------
// A view of a whole row of the buffer of that name, which is made at the first use and widened when a later use needs more.
struct atsi_view atsi_build_buffer(struct atsi_builder *b, const char *name, uint32_t width);        // token rows
struct atsi_view atsi_build_output_buffer(struct atsi_builder *b, const char *name, uint32_t width); // output rows
struct atsi_view atsi_build_ids_buffer(struct atsi_builder *b, const char *name, uint32_t width); // token rows, int32
struct atsi_view atsi_view_part(struct atsi_view v, uint32_t offset, uint32_t width);

// ---- units --------------------------------------------------------------------------------------------------------
// Opens a unit: the operations that follow belong to it. Named "blk.LAYER.name" or "name".
void atsi_build_unit(struct atsi_builder *b, enum atsi_unit_kind kind, const char *name);

// ---- operations ---------------------------------------------------------------------------------------------------
// An operation with all operands absent.
struct atsi_op atsi_op_blank(enum atsi_op_kind kind);
void atsi_build_op(struct atsi_builder *b, const struct atsi_op *op);
// Appends a state "blk.LAYER.name" and returns its index.
int32_t atsi_build_state(struct atsi_builder *b, const char *name, struct atsi_state state);

// One operation each; formulas: formats/program.h. Tensors by their index, ATSI_NONE: absent. `add`: onto what `out` holds.
void atsi_build_norm(struct atsi_builder *b, struct atsi_view in, struct atsi_view out, int32_t weight, uint32_t group,
                     bool add);
void atsi_build_matmul(struct atsi_builder *b, struct atsi_view in, struct atsi_view out, int32_t weight, int32_t bias,
                       bool add);
void atsi_build_glu(struct atsi_builder *b, struct atsi_view gate, struct atsi_view up, struct atsi_view out,
                    struct atsi_glu_params params);
// In place: x is what it reads and what it writes.
void atsi_build_gate(struct atsi_builder *b, struct atsi_view x, struct atsi_view gate);

#endif
