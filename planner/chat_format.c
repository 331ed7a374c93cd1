#include "planner/chat_format.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct rule {
    const char *format;
    const char *required[4];  // all of them stand in the template
    const char *forbidden[2]; // stand in templates of relatives that are rendered differently
    bool has_prompt;          // it may state a system prompt: the format's own, one beside tools, one to leave out
};

// In order: a template is taken for the first that fits. Templates write line breaks as "\n" inside their quotes.
static const struct rule rules[] = {
    {"harmony", {"<|channel|>", "<|start|>"}, {NULL}, true},

    // A system turn that states today's date, or a fixed one.
    {"llama3.2", {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date", "strftime_now"}, {NULL}, false},
    {"llama3.1", {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date", "date_string"}, {NULL}, false},
    {"llama3", {"<|start_header_id|>", "<|eot_id|>"}, {"date_string", "Cutting Knowledge Date"}, false},

    {"gemma", {"<start_of_turn>", "<end_of_turn>"}, {NULL}, false},

    {"glm4.5", {"[gMASK]", "<|assistant|>", "<think></think>"}, {NULL}, false},
    {"glm4.7", {"[gMASK]", "<|assistant|>", "{{ '</think>' }}"}, {NULL}, false},
    {"glm-z1", {"[gMASK]", "<|assistant|>\n<think>"}, {NULL}, false},  // the answer begins in thought
    {"glm-z1", {"[gMASK]", "<|assistant|>\\n<think>"}, {NULL}, false}, // copies that spell the line break
    {"glm4", {"[gMASK]", "<|assistant|>"}, {NULL}, false},

    {"phi4-mini", {"'<|' + message['role'] + '|>'", "<|end|>"}, {NULL}, false},
    {"phi3", {"<|user|>", "<|assistant|>", "<|end|>"}, {"[BEGIN FINAL RESPONSE]"}, false}, // Apriel
    {"phi4", {"<|im_start|>", "<|im_sep|>", "<|im_end|>"}, {NULL}, false},
    {"minimax-m2", {"]~!b[", "]~b]", "[e~["}, {"<mm:think>"}, true}, // MiniMax-M3
    {"ernie", {"<|begin_of_sentence|>", "<|end_of_sentence|>", "User: ", "Assistant: "}, {"IMAGE_START"}, false},
    {"seed", {"<seed:bos>", "<seed:eos>"}, {NULL}, true},

    // Qwen 3.5 renders contents through a macro; unless told otherwise it thinks, or (the small ones) does not.
    {"qwen3.5-nothink", {"<|im_start|>", "<|im_end|>", "render_content(", "enable_thinking is true"}, {NULL}, false},
    {"qwen3.5", {"<|im_start|>", "<|im_end|>", "render_content(", "'<think>\\n'"}, {NULL}, false},
    // The answer begins in thought: quoted in either way, or with line breaks as they are.
    {"qwen3-thinking", {"<|im_start|>", "<|im_end|>", "assistant\\n<think>\\n'"}, {NULL}, false},
    {"qwen3-thinking", {"<|im_start|>", "<|im_end|>", "assistant\\n<think>\\n\""}, {NULL}, false},
    {"qwen3-thinking", {"<|im_start|>", "<|im_end|>", "assistant\n<think>\n"}, {NULL}, false},
    {"qwen3", {"<|im_start|>", "<|im_end|>", "</think>"}, {"strftime_now"}, false},
    {"qwen2.5",
     {"<|im_start|>", "<|im_end|>", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>"},
     {NULL},
     true},
    {"qwen1.5", {"<|im_start|>", "<|im_end|>", "system\nYou are a helpful assistant<|im_end|>"}, {NULL}, true},
    {"qwen2", {"<|im_start|>", "<|im_end|>", "system\nYou are a helpful assistant.<|im_end|>"}, {NULL}, true},
    {"qwen2", {"<|im_start|>", "<|im_end|>", "system\\nYou are a helpful assistant.<|im_end|>"}, {NULL}, true},
    {"chatml", {"<|im_start|>", "<|im_end|>", "You are Qwen, a helpful AI assistant that can interact"}, {NULL}, true},
    // Not the first models named Yi, nor those that state today's date.
    {"chatml", {"<|im_start|>", "<|im_end|>"}, {"{{ system_message }}", "strftime_now"}, false},

    {"mistral-v7", {"[SYSTEM_PROMPT]", "[INST]", "[/INST]"}, {"[SYSTEM_PROMPT] "}, true},
    {"mistral", {"[INST] ", " [/INST]"}, {"<<SYS>>", "[SYSTEM_PROMPT]"}, false}, // <<SYS>>: Llama 2
    {"mistral-v3", {"[INST] ", "[/INST]"}, {"<<SYS>>", "[SYSTEM_PROMPT]"}, false},
    {"mistral-tekken", {"[INST]", "[/INST]"}, {"<<SYS>>", "[SYSTEM_PROMPT]"}, false},
};

// How a template states a system prompt of its own, which the model was trained to begin with.
static const char *const prompts[] = {
    "'You are ",         "\"You are ",         "<|system|>Your name is ", "system\nYou are ",
    "system\\nYou are ", "<|im_sep|>You are ", "<|im_start|>system\n\n", // Marco-o1, in Chinese
};

// What templates write that share the marks of a format above and are rendered differently even with no tools.
static const char *const strangers[] = {
    "Reasoning Effort",                  // GLM-5: a system turn that states it
    "Reasoning Mode",                    // SmolLM3: the same with its date and more
    "ns.last_assistant_index",           // LFM2.5: the last answer's thinking stays
    "item['metadata']",                  // GLM-4-9B-Chat: nothing is trimmed
    "<global_setting>",                  // ERNIE 4.5 Thinking: a system turn always, responses in tags
    "truncate_history_thinking",         // Nemotron 3: a system turn always, thinking that stays
    "<|function_output|>",               // Bielik: thinking that stays
    "In this environment you have",      // MiroThinker
    "You are capable of executing",      // Functionary 3.2
    "version=v3-llama3.1",               // Functionary 3.1: Llama 3.1 without today's date
    "access to functions.",              // FireFunction
    "<BEGIN UNSAFE CONTENT CATEGORIES>", // Llama Guard
};

static bool contains(struct atsi_str text, const char *marker) {
    return memmem(text.data, text.size, marker, strlen(marker)) != NULL;
}

static bool contains_any(struct atsi_str text, const char *const *markers, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (markers[i] && contains(text, markers[i])) return true;
    return false;
}

static bool matches(const struct rule *rule, struct atsi_str text) {
    for (size_t i = 0; i < COUNT(rule->required); i++)
        if (rule->required[i] && !contains(text, rule->required[i])) return false;
    return !contains_any(text, rule->forbidden, COUNT(rule->forbidden)) &&
           (rule->has_prompt || !contains_any(text, prompts, COUNT(prompts)));
}

const char *atsi_chat_format_detect(struct atsi_str chat_template) {
    if (!chat_template.data || contains_any(chat_template, strangers, COUNT(strangers))) return "";
    for (size_t i = 0; i < COUNT(rules); i++)
        if (matches(&rules[i], chat_template)) return rules[i].format;
    return "";
}

bool atsi_chat_format_omits_prompt(const char *format, struct atsi_str chat_template) {
    return !strcmp(format, "mistral-v7") && contains(chat_template, "default_system_message");
}
