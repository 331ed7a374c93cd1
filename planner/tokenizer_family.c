#include "planner/tokenizer_family.h"

#include <stdio.h>
#include <string.h>

// The patterns are those of the models' own tokenizer.json, with one change: \s is written as a class, because PCRE2's
// also matches U+180E, which is no white space since Unicode 6.3. SPACE is Unicode's White_Space inside brackets.
#define SPACE       "\\t-\\r\\x{85}\\p{Z}"
#define S           "[" SPACE "]"
#define SPACES_TAIL S "+(?![^" SPACE "])" // white space, less the last character before a word
#define NEWLINES    S "*[\\r\\n]+"
#define SUFFIX      "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" SPACES_TAIL "|" S "+"

// GPT-4 and what came of it: suffixes, words with one leading sign, numbers, signs with their line ends, white space.
#define GPT4(number)                                                                                                  \
    SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" number "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|" NEWLINES "|" SPACES_TAIL \
           "|" S "+"
#define SEED \
    SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" SPACE "\\p{L}\\p{N}]+|" NEWLINES "|" SPACES_TAIL "|" S "+"
#define QWEN35                                                                                                  \
    SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" SPACE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" NEWLINES \
           "|" SPACES_TAIL "|" S "+"

// Words split where lower case meets upper case. Marks (M) count as either.
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(suffix, number)                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix \
    "|" number "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n/]*|" NEWLINES "|" SPACES_TAIL "|" S "+"

#define LINE_ENDS "[\\r\\n]"
// Ideographs with the other scripts that the models' files put beside them (the ranges touch in the original).
#define DEEPSEEK_CJK  "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
#define DEEPSEEK3_CJK "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define DEEPSEEK3                                                                                       \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" \
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" NEWLINES "|" SPACES_TAIL "|" S "+"
#define DEEPSEEK_SIGNS S "?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+"
// The original is \s+$. The look-behind makes a long run of spaces inside a line linear instead of quadratic.
#define TRAILING_SPACE "(?<!" S ")" S "+\\z"
// Letters of the scripts that have case, as deepseek-llm lists them.
#define CASED_LETTERS                                                                                      \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}"        \
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}" \
    "\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}"        \
    "\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"      \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}"      \
    "\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}"                 \
    "\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}"                \
    "\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}"      \
    "\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}"        \
    "\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}"                 \
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"                 \
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"       \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}"      \
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}"                     \
    "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}"                 \
    "\\x{1E900}-\\x{1E943}"

static const struct atsi_tokenizer_family families[] = {
    {.names = "gpt-2 phi-2", .patterns = {GPT2}},
    {.names = "mpt olmo", .patterns = {GPT2}, .nfc = true},
    {.names = "starcoder refact smollm", .patterns = {"\\p{N}", GPT2}},
    {.names = "command-r", .patterns = {"\\p{N}", GPT2}, .nfc = true},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     .patterns = {GPT4("\\p{N}{1,3}")},
     .ignore_merges = true,
     .add_bos = true},
    {.names = "dbrx smaug-bpe", .patterns = {GPT4("\\p{N}{1,3}")}},
    {.names = "glm4 chatglm-bpe", .patterns = {GPT4("\\p{N}{1,3}")}},
    {.names = "qwen2 deepseek-r1-qwen", .patterns = {GPT4("\\p{N}")}, .nfc = true},
    {.names = "seed-coder", .patterns = {SEED}},
    {.names = "qwen35", .patterns = {QWEN35}, .nfc = true},
    {.names = "gpt-4o llama4 minimax-m2", .patterns = {CASED(SUFFIX "?", "\\p{N}{1,3}")}},
    {.names = "tekken", .patterns = {CASED("", "\\p{N}")}, .ignore_merges = true, .add_bos = true},
    {.names = "deepseek-llm",
     .patterns = {LINE_ENDS, S "?[" CASED_LETTERS "]+", DEEPSEEK_SIGNS, TRAILING_SPACE, DEEPSEEK_CJK, "\\p{N}"}},
    {.names = "deepseek-coder", .patterns = {LINE_ENDS, S "?\\p{L}+", S "?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {.names = "deepseek-v3 hunyuan-dense", .patterns = {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3}},
    {.names = "falcon", .patterns = {"[\\p{P}$+<=>^`|~]+", GPT2, "[0-9][0-9][0-9]"}},
};

static bool has_name(const char *names, const char *name) {
    size_t size = strlen(name);
    if (size == 0 || strchr(name, ' ')) return false;
    for (const char *at = names; (at = strstr(at, name)); at++)
        if ((at == names || at[-1] == ' ') && (at[size] == ' ' || at[size] == 0)) return true;
    return false;
}

const struct atsi_tokenizer_family *atsi_tokenizer_family_find(const char *name) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (has_name(families[i].names, name)) return families + i;
    return NULL;
}

void atsi_tokenizer_family_names(char *out, size_t out_size) {
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < sizeof families / sizeof *families && used < out_size; i++)
        used += (size_t)snprintf(out + used, out_size - used, "%s%s", i ? " " : "", families[i].names);
}
