#include "planner/arch/families.h"

static const struct atsi_family families[] = {
    {"llama", "Llama 2, 3, 3.1; Mistral; Mixtral", atsi_lower_llama},
    {"mistral3", "Ministral 3 (contexts up to 16384), Mistral Small 3.1 and 3.2", atsi_lower_mistral3},
    {"qwen2", "Qwen2, Qwen2.5", atsi_lower_qwen2},
    {"qwen2moe", "Qwen1.5-MoE, Qwen2-57B-A14B", atsi_lower_qwen2moe},
    {"qwen3", "Qwen3", atsi_lower_qwen3},
    {"qwen3moe", "Qwen3-30B-A3B, Qwen3-235B-A22B", atsi_lower_qwen3moe},
    {"qwen3next", "Qwen3-Next-80B-A3B", atsi_lower_qwen3next},
    {"qwen35", "Qwen3.5", atsi_lower_qwen35},
    {"qwen35moe", "Qwen3.5-122B-A10B", atsi_lower_qwen35},
    {"gemma3", "Gemma 3 (text)", atsi_lower_gemma3},
    {"gpt-oss", "GPT-OSS-20B, GPT-OSS-120B", atsi_lower_gptoss},
    {"glm4", "GLM-4, GLM-Z1", atsi_lower_glm4},
    {"glm4moe", "GLM-4.5, GLM-4.6, GLM-4.7", atsi_lower_glm4moe},
    {"phi3", "Phi-3, Phi-4", atsi_lower_phi3},
    {"minimax-m2", "MiniMax-M2", atsi_lower_minimax_m2},
    {"seed_oss", "Seed-OSS-36B", atsi_lower_seedoss},
    {"ernie4_5", "ERNIE 4.5 (dense)", atsi_lower_ernie4_5},
    {"ernie4_5-moe", "ERNIE-4.5-21B-A3B, ERNIE-4.5-300B-A47B", atsi_lower_ernie4_5moe},
};

const struct atsi_family *atsi_family_at(size_t index) {
    return index < sizeof families / sizeof *families ? &families[index] : NULL;
}

const struct atsi_family *atsi_family_find(struct atsi_str arch) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (atsi_str_is(arch, families[i].arch)) return &families[i];
    return NULL;
}
