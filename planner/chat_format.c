#include "planner/chat_format.h"

struct rule {
    const char *format;
    const char *required[4];  // all of them stand in the template
    const char *forbidden[2]; // stand in templates of relatives that are rendered differently
};

// In order: a template is taken for the first that fits. Templates write line breaks as "\n" inside their quotes.
static const struct rule rules[] = {
    {"harmony", {"<|channel|>", "<|start|>"}, {NULL}},

    {"llama3.2",
     {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date", "strftime_now"},
     {NULL}},                                                                              // states today's date
    {"llama3.1", {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date"}, {NULL}}, // a fixed one
    {"llama3", {"<|start_header_id|>", "<|eot_id|>"}, {NULL}},

    {"gemma", {"<start_of_turn>", "<end_of_turn>"}, {NULL}},

    {"glm4.5", {"[gMASK]", "<|assistant|>", "<think></think>"}, {NULL}},
    {"glm4.7", {"[gMASK]", "<|assistant|>", "{{ '</think>' }}"}, {NULL}},
    {"glm-z1", {"[gMASK]", "<|assistant|>\n<think>"}, {NULL}},  // the answer begins in thought
    {"glm-z1", {"[gMASK]", "<|assistant|>\\n<think>"}, {NULL}}, // copies that spell the line break
    {"glm4", {"[gMASK]", "<|assistant|>"}, {NULL}},

    {"phi4-mini", {"'<|' + message['role'] + '|>'", "<|end|>"}, {NULL}},
    {"phi3", {"<|user|>", "<|assistant|>", "<|end|>"}, {"[BEGIN FINAL RESPONSE]"}}, // Apriel
    {"phi4", {"<|im_start|>", "<|im_sep|>", "<|im_end|>"}, {NULL}},
    {"minimax-m2", {"]~!b[", "]~b]", "[e~["}, {"<mm:think>"}}, // MiniMax-M3
    {"seed", {"<seed:bos>", "<seed:eos>"}, {NULL}},

    // Qwen 3.5 renders contents through a macro; unless told otherwise it thinks, or (the small ones) does not.
    {"qwen3.5-nothink", {"<|im_start|>", "<|im_end|>", "render_content(", "enable_thinking is true"}, {NULL}},
    {"qwen3.5", {"<|im_start|>", "<|im_end|>", "render_content(", "'<think>\\n'"}, {NULL}},
    {"qwen3-thinking", {"<|im_start|>", "<|im_end|>", "assistant\\n<think>\\n'"}, {NULL}},
    {"qwen3", {"<|im_start|>", "<|im_end|>", "</think>"}, {NULL}},
    {"qwen2.5",
     {"<|im_start|>", "<|im_end|>", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>"},
     {NULL}},
    {"qwen2", {"<|im_start|>", "<|im_end|>", "You are a helpful assistant.<|im_end|>"}, {NULL}},
    {"chatml", {"<|im_start|>", "<|im_end|>"}, {NULL}},

    {"mistral-v7", {"[SYSTEM_PROMPT]", "[INST]", "[/INST]"}, {"[SYSTEM_PROMPT] "}},
    {"mistral", {"[INST] ", " [/INST]"}, {"<<SYS>>", "[SYSTEM_PROMPT]"}}, // <<SYS>>: Llama 2
    {"mistral-v3", {"[INST] ", "[/INST]"}, {"<<SYS>>", "[SYSTEM_PROMPT]"}},
    {"mistral-tekken", {"[INST]", "[/INST]"}, {"<<SYS>>", "[SYSTEM_PROMPT]"}},
};

static bool contains(struct atsi_str text, const char *marker) {
    return memmem(text.data, text.size, marker, strlen(marker)) != NULL;
}

static bool matches(const struct rule *rule, struct atsi_str text) {
    for (size_t i = 0; i < sizeof rule->required / sizeof *rule->required; i++)
        if (rule->required[i] && !contains(text, rule->required[i])) return false;
    for (size_t i = 0; i < sizeof rule->forbidden / sizeof *rule->forbidden; i++)
        if (rule->forbidden[i] && contains(text, rule->forbidden[i])) return false;
    return true;
}

const char *atsi_chat_format_detect(struct atsi_str chat_template) {
    if (!chat_template.data) return "";
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (matches(&rules[i], chat_template)) return rules[i].format;
    return "";
}
