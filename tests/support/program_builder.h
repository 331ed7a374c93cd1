// program_builder.h: a small valid program for tests: embedding, one block with attention and a two-expert MoE, output head.
#ifndef ATSI_TESTS_SUPPORT_PROGRAM_BUILDER_H
#define ATSI_TESTS_SUPPORT_PROGRAM_BUILDER_H

#include "formats/plan.h"

// Fills *plan (width 320, so that its matrices are no small tensors, 2 heads of 160, 4 experts of which 2 are used, vocabulary 48, context 64, chunk 8). Free with
// atsi_plan_free.
void test_build_plan(struct atsi_plan *plan);
// The same with three products of experts, gate, up and down, a unit each.
void test_build_gated_plan(struct atsi_plan *plan);
// Layers of one matrix in place of the attention ("mix") and a gated network of three ("gate", "up", "down"): 4 units each, between
// embedding and head.
void test_build_dense_plan(struct atsi_plan *plan, uint32_t n_layers);
// The plan's manifest is refused when it is read, with `word` in what is said.
void check_plan_refused(const struct atsi_plan *plan, const char *word);

#endif
