#include "planner/chat_format.h"

struct rule {
    const char *format;
    const char *required[2]; // all of them stand in the template; NULL: none
    const char *forbidden;   // stands in templates of a relative that is rendered differently
};

// In order: a template that knows several markers is taken for the first.
static const struct rule rules[] = {
    {"harmony", {"<|channel|>", "<|start|>"}, NULL},
    {"llama3", {"<|start_header_id|>", "<|eot_id|>"}, NULL},
    {"gemma", {"<start_of_turn>", "<end_of_turn>"}, NULL},
    {"glm4", {"[gMASK]", "<|assistant|>"}, NULL},
    {"chatml", {"<|im_start|>", "<|im_end|>"}, "<|im_sep|>"}, // <|im_sep|>: Phi-4
    {"mistral", {"[INST]", "[/INST]"}, "<<SYS>>"},            // <<SYS>>: Llama 2
};

static bool contains(struct atsi_str text, const char *marker) {
    return memmem(text.data, text.size, marker, strlen(marker)) != NULL;
}

static bool matches(const struct rule *rule, struct atsi_str text) {
    for (int i = 0; i < 2; i++)
        if (rule->required[i] && !contains(text, rule->required[i])) return false;
    return !rule->forbidden || !contains(text, rule->forbidden);
}

const char *atsi_chat_format_detect(struct atsi_str chat_template) {
    if (!chat_template.data) return "";
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (matches(&rules[i], chat_template)) return rules[i].format;
    return "";
}
