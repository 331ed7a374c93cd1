#include "runtime/chat_format.h"

#include <stdio.h>
#include <string.h>

#define TRIM_ALL     (1u << ATSI_CHAT_SYSTEM | 1u << ATSI_CHAT_USER | 1u << ATSI_CHAT_ASSISTANT)
#define TRIM_TALK    (1u << ATSI_CHAT_USER | 1u << ATSI_CHAT_ASSISTANT)
#define TRIM_ANSWERS (1u << ATSI_CHAT_ASSISTANT)

// What the formats of a family share.
#define CHATML_ROLE(role) "<|im_start|>" role "\n"
#define CHATML_REPLY      CHATML_ROLE("assistant")
#define CHATML                                             \
    .begin = "",                                           \
    .turns = {{CHATML_ROLE("system"), "<|im_end|>\n"},     \
              {CHATML_ROLE("user"), "<|im_end|>\n"},       \
              {CHATML_ROLE("assistant"), "<|im_end|>\n"}}, \
    .marks = {"<|im_start|>", "<|im_end|>"}

#define LLAMA_ROLE(role)   "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define LLAMA_DATES(today) LLAMA_ROLE("system") "Cutting Knowledge Date: December 2023\nToday Date: " today "\n\n"
#define LLAMA(system)                                                                                               \
    .flags = ATSI_CHAT_BOS, .trimmed = TRIM_ALL, .begin = "",                                                       \
    .turns = {{system, "<|eot_id|>"}, {LLAMA_ROLE("user"), "<|eot_id|>"}, {LLAMA_ROLE("assistant"), "<|eot_id|>"}}, \
    .reply = LLAMA_ROLE("assistant"), .marks = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}

#define GLM(answer)                                                    \
    .flags = ATSI_CHAT_DROPS_THINKING, .begin = "[gMASK]<sop>",        \
    .turns = {{"<|system|>\n", ""}, {"<|user|>\n", ""}, {answer, ""}}, \
    .marks = {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"}

#define PHI4_ROLE(role) "<|im_start|>" role "<|im_sep|>"
#define PHI4_REPLY      PHI4_ROLE("assistant")

#define HARMONY_SYSTEM                                                                       \
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n" \
    "Knowledge cutoff: 2024-06\nCurrent date: {date}\n\nReasoning: medium\n\n"               \
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"

static const struct atsi_chat_format formats[] = {
    {.name = "chatml", CHATML, .reply = CHATML_REPLY},
    {.name = "qwen1.5", CHATML, .reply = CHATML_REPLY, .default_system = "You are a helpful assistant"},
    {.name = "qwen2", CHATML, .reply = CHATML_REPLY, .default_system = "You are a helpful assistant."},
    {.name = "qwen2.5",
     CHATML,
     .reply = CHATML_REPLY,
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.name = "qwen3", CHATML, .flags = ATSI_CHAT_DROPS_THINKING, .reply = CHATML_REPLY},
    {.name = "qwen3-thinking", CHATML, .flags = ATSI_CHAT_DROPS_THINKING, .reply = CHATML_REPLY "<think>\n"},
    {.name = "qwen3.5",
     CHATML,
     .flags = ATSI_CHAT_DROPS_THINKING,
     .trimmed = TRIM_ALL,
     .reply = CHATML_REPLY "<think>\n"},
    {.name = "qwen3.5-nothink",
     CHATML,
     .flags = ATSI_CHAT_DROPS_THINKING,
     .trimmed = TRIM_ALL,
     .reply = CHATML_REPLY "<think>\n\n</think>\n\n"},
    {.name = "llama3", LLAMA(LLAMA_ROLE("system"))},
    {.name = "llama3.1", LLAMA(LLAMA_DATES("26 Jul 2024")), .default_system = ""},
    {.name = "llama3.2", LLAMA(LLAMA_DATES("{date}")), .default_system = "", .date_format = "%d %b %Y"},
    {.name = "gemma",
     .flags = ATSI_CHAT_BOS | ATSI_CHAT_SYSTEM_IN_FIRST_USER,
     .trimmed = TRIM_TALK,
     .begin = "",
     .turns = {{"", ""}, {"<start_of_turn>user\n", "<end_of_turn>\n"}, {"<start_of_turn>model\n", "<end_of_turn>\n"}},
     .reply = "<start_of_turn>model\n",
     .marks = {"<start_of_turn>", "<end_of_turn>"}},
    {.name = "glm4", GLM("<|assistant|>\n"), .trimmed = TRIM_TALK, .reply = "<|assistant|>"},
    {.name = "glm-z1", GLM("<|assistant|>\n"), .trimmed = TRIM_TALK, .reply = "<|assistant|>\n<think>"},
    {.name = "glm4.5", GLM("<|assistant|>\n<think></think>\n"), .trimmed = TRIM_ANSWERS, .reply = "<|assistant|>"},
    {.name = "glm4.7",
     .flags = ATSI_CHAT_DROPS_THINKING,
     .trimmed = TRIM_ANSWERS,
     .begin = "[gMASK]<sop>",
     .turns = {{"<|system|>", ""}, {"<|user|>", ""}, {"<|assistant|></think>", ""}},
     .reply = "<|assistant|><think>",
     .marks = {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"}},
    {.name = "phi3",
     .begin = "",
     .turns = {{"<|system|>\n", "<|end|>\n"}, {"<|user|>\n", "<|end|>\n"}, {"<|assistant|>\n", "<|end|>\n"}},
     .reply = "<|assistant|>\n",
     .marks = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}},
    {.name = "phi4-mini",
     .begin = "",
     .turns = {{"<|system|>", "<|end|>"}, {"<|user|>", "<|end|>"}, {"<|assistant|>", "<|end|>"}},
     .reply = "<|assistant|>",
     .marks = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}},
    {.name = "phi4",
     .begin = "",
     .turns = {{PHI4_ROLE("system"), "<|im_end|>"}, {PHI4_ROLE("user"), "<|im_end|>"}, {PHI4_REPLY, "<|im_end|>"}},
     .reply = PHI4_REPLY,
     .marks = {"<|im_start|>", "<|im_sep|>", "<|im_end|>"}},
    {.name = "minimax-m2",
     .flags = ATSI_CHAT_DROPS_THINKING,
     .begin = "]~!b[",
     .turns = {{"]~b]system\n", "[e~[\n"}, {"]~b]user\n", "[e~[\n"}, {"]~b]ai\n", "[e~[\n"}},
     .reply = "]~b]ai\n<think>\n",
     .default_system = "You are a helpful assistant.",
     .marks = {"]~!b[", "]~b]", "[e~["}},
    {.name = "seed",
     .trimmed = TRIM_ANSWERS,
     .begin = "",
     .turns = {{"<seed:bos>system\n", "<seed:eos>"},
               {"<seed:bos>user\n", "<seed:eos>"},
               {"<seed:bos>assistant\n", "<seed:eos>"}},
     .reply = "<seed:bos>assistant\n",
     .marks = {"<seed:bos>", "<seed:eos>"}},
    {.name = "ernie",
     .begin = "<|begin_of_sentence|>",
     .turns = {{"", "\n"}, {"User: ", "\n"}, {"Assistant: ", "<|end_of_sentence|>"}},
     .reply = "Assistant: ",
     .marks = {"<|begin_of_sentence|>", "<|end_of_sentence|>"}},
    {.name = "harmony",
     .flags = ATSI_CHAT_CHANNELS,
     .begin = HARMONY_SYSTEM,
     .turns = {{"<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>"},
               {"<|start|>user<|message|>", "<|end|>"},
               {"<|start|>assistant<|channel|>final<|message|>", "<|end|>"}},
     .reply = "<|start|>assistant",
     .date_format = "%Y-%m-%d",
     .marks = {"<|start|>", "<|message|>", "<|end|>", "<|channel|>"}},
    {.name = "mistral",
     .flags = ATSI_CHAT_BOS | ATSI_CHAT_SYSTEM_IN_FIRST_USER,
     .begin = "",
     .turns = {{"", ""}, {"[INST] ", " [/INST]"}, {"", "</s>"}},
     .reply = "",
     .marks = {"</s>"}},
    {.name = "mistral-v3",
     .flags = ATSI_CHAT_BOS | ATSI_CHAT_SYSTEM_IN_LAST_USER,
     .trimmed = TRIM_ANSWERS,
     .begin = "",
     .turns = {{"", ""}, {"[INST] ", "[/INST]"}, {" ", "</s>"}},
     .reply = "",
     .marks = {"[INST]", "[/INST]", "</s>"}},
    {.name = "mistral-tekken",
     .flags = ATSI_CHAT_BOS | ATSI_CHAT_SYSTEM_IN_LAST_USER,
     .begin = "",
     .turns = {{"", ""}, {"[INST]", "[/INST]"}, {"", "</s>"}},
     .reply = "",
     .marks = {"[INST]", "[/INST]", "</s>"}},
    {.name = "mistral-v7",
     .flags = ATSI_CHAT_BOS,
     .begin = "",
     .turns = {{"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}, {"[INST]", "[/INST]"}, {"", "</s>"}},
     .reply = "",
     .marks = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]", "</s>"}},
};

const struct atsi_chat_format *atsi_chat_format_find(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(formats[i].name, name)) return &formats[i];
    return NULL;
}

void atsi_chat_format_names(const struct atsi_tokenizer *fitting, char *out, size_t cap) {
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < sizeof formats / sizeof *formats && used < cap; i++)
        if (!fitting || !atsi_chat_format_missing_mark(&formats[i], fitting))
            used += (size_t)snprintf(out + used, cap - used, "%s%s", used ? ", " : "", formats[i].name);
}

const char *atsi_chat_format_missing_mark(const struct atsi_chat_format *format,
                                          const struct atsi_tokenizer *tokenizer) {
    for (int i = 0; i < ATSI_CHAT_MAX_MARKS && format->marks[i]; i++)
        if (atsi_tokenizer_find_special(tokenizer, format->marks[i]) == ATSI_TOKEN_NONE) return format->marks[i];
    return NULL;
}
