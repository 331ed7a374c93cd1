// families.h: the model families that the planner can lower.
#ifndef ATSI_PLANNER_ARCH_FAMILIES_H
#define ATSI_PLANNER_ARCH_FAMILIES_H

#include <stddef.h>

#include "planner/arch/builder.h"

struct atsi_family {
    const char *arch; // general.architecture
    const char *examples;
    void (*lower)(struct atsi_builder *b); // failures stand in the builder
};

// NULL when there is none of that name.
const struct atsi_family *atsi_family_find(struct atsi_str arch);
const struct atsi_family *atsi_family_at(size_t index); // NULL past the last

// One file a family (or a few that differ in a word).
void atsi_lower_llama(struct atsi_builder *b);
void atsi_lower_mistral3(struct atsi_builder *b);
void atsi_lower_qwen2(struct atsi_builder *b);
void atsi_lower_qwen2moe(struct atsi_builder *b);
void atsi_lower_qwen3(struct atsi_builder *b);
void atsi_lower_qwen3moe(struct atsi_builder *b);
void atsi_lower_gemma3(struct atsi_builder *b);
void atsi_lower_gptoss(struct atsi_builder *b);
void atsi_lower_glm4(struct atsi_builder *b);
void atsi_lower_glm4moe(struct atsi_builder *b);
void atsi_lower_phi3(struct atsi_builder *b);
void atsi_lower_minimax_m2(struct atsi_builder *b);
void atsi_lower_seedoss(struct atsi_builder *b);
void atsi_lower_ernie4_5(struct atsi_builder *b);
void atsi_lower_ernie4_5moe(struct atsi_builder *b);
void atsi_lower_qwen3next(struct atsi_builder *b);
void atsi_lower_qwen35(struct atsi_builder *b);

#endif
