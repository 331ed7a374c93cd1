// Which chat format a template is taken for, and what is said of one that is not known.
#include <stdio.h>
#include <stdlib.h>

#include "planner/chat_format.h"
#include "planner/commands.h"
#include "tests/support/check.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test_temp.h"

static void formats_by_their_marks(void **state) {
    (void)state;
    static const char *const templates[][2] = {
        {"{{'<|im_start|>' + m.role}}...<|im_end|>", "chatml"},
        {"<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>", "llama3"},
        {"<start_of_turn>user\nhi<end_of_turn>\n", "gemma"},
        {"[gMASK]<sop><|user|>\nhi<|assistant|>", "glm4"},
        {"<|start|>system<|message|>x<|end|><|start|>assistant<|channel|>final", "harmony"},
        {"{{ '[INST] ' + m.content + ' [/INST]' }}", "mistral"},
        {"{{ '[INST] ' + m.content + '[/INST]' }}", "mistral-v3"},
        {"{{ '[INST]' + m.content + '[/INST]' }}", "mistral-tekken"},
        {"{{ '[SYSTEM_PROMPT]' + s + '[/SYSTEM_PROMPT]' }}{{ '[INST]' + m.content + '[/INST]' }}", "mistral-v7"},
        {"<|im_start|>assistant\\n' }}{{ '<think>\\n\\n</think>\\n\\n' }}<|im_end|>", "qwen3"},
        {"{{ '<|im_start|>assistant\\n<think>\\n' }}<|im_end|></think>", "qwen3-thinking"},
        {"<|im_start|>system\\nYou are a helpful assistant.<|im_end|>", "qwen2"},
        {"<|im_start|>system\nYou are a helpful assistant<|im_end|>", "qwen1.5"},
        {"{% set date_string = '26 Jul 2024' %}<|start_header_id|>Cutting Knowledge Date<|eot_id|>", "llama3.1"},
        {"{{ strftime_now('%d %b %Y') }}<|start_header_id|>Cutting Knowledge Date<|eot_id|>", "llama3.2"},
        {"[gMASK]<sop><|user|>\nhi<|assistant|>\n<think>", "glm-z1"},
        {"[gMASK]<sop>{% if add_generation_prompt %}<|assistant|>\\n<think>{% endif %}", "glm-z1"},
        {"[INST] <<SYS>>\nx\n<</SYS>>\n\nhi [/INST]", ""}, // Llama 2
        {"<|im_start|>user<|im_sep|>hi<|im_end|>", "phi4"},
        {"{{'<|user|>\n' + m.content + '<|end|>\n'}}<|assistant|>", "phi3"},
        {"{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}<|assistant|>", "phi4-mini"},
        {"{{- ']~!b[' ~ ']~b]system' ~ '\\n' }}{{- '[e~[\\n' }}", "minimax-m2"},
        {"[gMASK]<sop>{%- else -%}{{ '</think>' }}{%- endif -%}<|assistant|>{{- '<think>' -}}", "glm4.7"},
        {"<|user|>\n<|assistant|>\n<|end|>[BEGIN FINAL RESPONSE]", ""}, // Apriel
        {"{%- set bos_token = '<seed:bos>' -%}{%- set eos_token = '<seed:eos>' -%}", "seed"},
        {"{{ '<|begin_of_sentence|>' }}{{ 'User: ' + m.content }}{{ 'Assistant: ' }}{{ '<|end_of_sentence|>' }}",
         "ernie"},
        {"{{- \"<|im_start|>assistant\\n<think>\\n\" }}<|im_end|></think>", "qwen3-thinking"},
        {"{{ '<|im_start|>assistant\n<think>\n' }}<|im_end|></think>", "qwen3-thinking"},
        {"{% for m in messages %}{{ m.content }}{% endfor %}", ""},
        {"", ""},
    };
    for (unsigned i = 0; i < sizeof templates / sizeof *templates; i++)
        assert_string_equal(atsi_chat_format_detect(atsi_str_of(templates[i][0])), templates[i][1]);
    assert_string_equal(atsi_chat_format_detect((struct atsi_str){NULL, 0}), "");
}

// Templates with the marks of a known format that render a prompt of their own, or turns in another way.
static void relatives_are_not_taken_for_it(void **state) {
    (void)state;
    static const char *const templates[] = {
        // GLM-5, SmolLM3, Hermes 3 with tools, ERNIE 4.5 Thinking
        "[gMASK]<sop><|system|>Reasoning Effort: {{ effort }}<|assistant|><think></think>",
        "{{- \"<|im_start|>system\\n\" -}}{{- \"Reasoning Mode: \" + mode -}}</think><|im_end|>",
        "{{ '<|im_start|>system\n' }}{{ \"You are a function calling AI model. \" }}<|im_end|>",
        "{{- '<|im_start|>system\\n<global_setting>\\nthink_mode=True' "
        "}}<|im_start|>assistant\\n<think>\\n\"<|im_end|>",
        // system prompts in ChatML: one string, in parts, by variable
        "{{ '<|im_start|>system\nYou are OpenCoder, created by OpenCoder Team.<|im_end|>\n' }}",
        "{{- '<|im_start|>system\\n' }}{{- 'You are MiMo, an AI assistant.' }}<|im_end|>",
        "{% set system_message = 'You are a helpful assistant.' %}{{ '<|im_start|>system' + system_message "
        "}}<|im_end|>",
        "{{ system_message }}{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}", // Yi: before all turns
        // today's date, in ChatML
        "{{ '<|im_start|>system\\nToday is ' + strftime_now('%d %b %Y') + '<|im_end|>' }}",
        "{{ '<|im_start|>system\\nToday is ' + strftime_now('%d %b %Y') + '<|im_end|>' }}</think>",
        // Nemotron: a system turn always, without Llama's dates
        "{% set date_string = \"26 Jul 2024\" %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>' }}<|eot_id|>",
        "{# version=v3-llama3.1 #}<|start_header_id|>Cutting Knowledge Date: December 2023<|eot_id|>",
        "{{ \"You are a policy expert.\\n<start_of_turn>\" }}<end_of_turn>", // ShieldGemma
        "{{'<|system|>Your name is Phi.<|end|>'}}{{ '<|' + message['role'] + '|>' }}<|end|>",
        "<|im_start|>system<|im_sep|>You are Phi, a language model.<|im_end|>",
    };
    for (unsigned i = 0; i < sizeof templates / sizeof *templates; i++)
        assert_string_equal(atsi_chat_format_detect(atsi_str_of(templates[i])), "");
}

// ---- what atsi-plan says ------------------------------------------------------------------------------------------------

// A plan is made of a small vocabulary with that chat template (NULL: none). Returns what was said, to be freed.
static char *said_while_planning(const char *chat_template, bool quiet) {
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a", "b"};
    static const int64_t types[] = {2, 3, 3, 1, 1};
    static const float scores[] = {0, 0, 0, -1, -2};
    char folder[TEMP_ROOT_CAP], model[TEMP_PATH_CAP], plan[TEMP_PATH_CAP], *said = NULL;
    size_t size = 0;
    struct atsi_error err = {0};
    struct gguf_builder g;
    gb_init(&g);
    gb_str(&g, "general.architecture", "llama");
    gb_str(&g, "tokenizer.ggml.model", "llama");
    gb_strs(&g, "tokenizer.ggml.tokens", 5, tokens);
    gb_floats(&g, "tokenizer.ggml.scores", 5, scores);
    gb_ints(&g, "tokenizer.ggml.token_type", GB_I32, 5, types);
    if (chat_template) gb_str(&g, "tokenizer.chat_template", chat_template);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    temp_folder(folder);
    bytes_write(&file, folder, "m.gguf");
    bytes_free(&file);
    snprintf(model, sizeof model, "%s/m.gguf", folder);
    snprintf(plan, sizeof plan, "%s/m.atsp", folder);

    static const volatile sig_atomic_t stop = 0;
    struct atsi_console console = {.out = open_memstream(&said, &size), .quiet = quiet, .stop = &stop};
    console.log = console.out;
    struct atsi_plan_options options = {.input_path = model, .output_path = plan, .vocab_only = true, .quiet = quiet};
    check_ok(atsi_command_make(&options, "", &console, &err), err);
    fclose(console.out);
    temp_remove(folder);
    return said;
}

static unsigned n_lines(const char *text) {
    unsigned n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

static void check_said(const char *chat_template, bool quiet, const char *word, unsigned expected_lines) {
    char *said = said_while_planning(chat_template, quiet);
    if (word) assert_non_null(strstr(said, word));
    assert_int_equal(n_lines(said), expected_lines);
    free(said);
}

static void what_a_chat_will_lack_is_told(void **state) {
    (void)state;
    static const char unknown[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    static const char mistral[] = "{% set default_system_message = 'You are M.' %}"
                                  "[SYSTEM_PROMPT]{{ s }}[/SYSTEM_PROMPT][INST]{{ m.content }}[/INST]";
    check_said(unknown, false, "--chat-format", 2); // the line, and that the plan is written
    check_said(unknown, true, NULL, 0);
    check_said(mistral, false, "--system", 2);
    check_said("{{'<|im_start|>' + m.role}}...<|im_end|>", false, NULL, 1);
    check_said(NULL, false, NULL, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_by_their_marks),
        cmocka_unit_test(relatives_are_not_taken_for_it),
        cmocka_unit_test(what_a_chat_will_lack_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
