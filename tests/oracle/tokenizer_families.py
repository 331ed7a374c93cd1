"""The pre-tokenizers that tokenizer.ggml.pre names, as the models' own tokenizer.json states them."""

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SEED = QWEN2.replace(r"+[\r\n]*|", "+|")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = GPT4O.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK3_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
DEEPSEEK_SIGNS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
# The scripts that have case, with the ranges by their ends.
DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
    "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113"
    "\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
    "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)


def _splits(*steps):
    """Patterns applied one after the other, then the byte alphabet."""
    made = [Split(Regex(s), behavior="isolated") if isinstance(s, str) else s for s in steps]
    return Sequence(made + [ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = ByteLevel(add_prefix_space=False, use_regex=True)

# name: (pre-tokenizer, NFC, ignore_merges)
FAMILIES = {
    "gpt-2": (_GPT2, False, False),
    "olmo": (_GPT2, True, False),
    "starcoder": (Sequence([Digits(individual_digits=True), _GPT2]), False, False),
    "command-r": (Sequence([Digits(individual_digits=True), _GPT2]), True, False),
    "llama-bpe": (_splits(LLAMA3), False, True),
    "dbrx": (_splits(LLAMA3), False, False),
    "glm4": (_splits(LLAMA3), False, False),
    "qwen2": (_splits(QWEN2), True, False),
    "seed-coder": (_splits(SEED), False, False),
    "qwen35": (_splits(QWEN35), True, False),
    "gpt-4o": (_splits(GPT4O), False, False),
    "tekken": (_splits(TEKKEN), False, True),
    "deepseek-llm": (
        _splits(r"[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+", DEEPSEEK_SIGNS, r"\s+$", DEEPSEEK_CJK, Digits(individual_digits=True)),
        False,
        False,
    ),
    "deepseek-coder": (
        _splits(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, Digits(individual_digits=True)),
        False,
        False,
    ),
    "deepseek-v3": (_splits(r"\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3), False, False),
}
# Falcon's file splits digits after the bytes have got their letters, where some bytes look like digits (U+00B2). No token
# of its vocabulary crosses such a split, so it is compared on that vocabulary only.
FALCON = (
    Sequence(
        [
            Punctuation("contiguous"),
            _GPT2,
            Digits(individual_digits=False),
            Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"),
        ]
    ),
    False,
    False,
)
