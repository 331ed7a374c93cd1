"""Token ids of the demo vocabulary against the Rust library tokenizers (PyPI)."""

import random

from gguf import GGUFReader
from oracle import MODEL, WORK, demo_plan, finish, report, run
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

# How the pre-tokenizer "qwen2" splits, as its models' tokenizer.json states it.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
N_RANDOM = 60
TEXTS = [
    "Once upon a time",
    "  leading and trailing  ",
    "It is a truth universally acknowledged, that a single man...\n\n\tmust be in want of a wife.\r\n",
    "I'll we've DON'T 1234567890 3.14",
    "na\u00efve caf\u00e9 e\u0301 \u4f60\u597d \U0001f600\u200d\U0001f680 \u00a0\u3000x",
    "<|endoftext|>",
]


def oracle_tokenizer():
    fields = GGUFReader(MODEL).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.normalizer = NFC()
    split = Split(Regex(QWEN2), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def random_texts(rng):
    """Words, spaces, digits, marks and letters of several scripts in random order."""
    parts = list("abcXYZ019 .,;!?-'\"\n\t\r") + ["  ", "the", " and", "\u00e9", "e\u0301", "\u0431", "\u6f22", "\U0001f600", "'s"]
    return ["".join(rng.choices(parts, k=rng.randint(1, 40))) for _ in range(N_RANDOM)]


def main():
    oracle = oracle_tokenizer()
    plan = demo_plan("--vocab-only")
    wrong = []
    for text in TEXTS + random_texts(random.Random(1)):
        path = WORK / "text.txt"
        path.write_bytes(text.encode())
        expected = oracle.encode(text, add_special_tokens=False).ids
        found = [int(word) for word in run("atsi-run", plan, "--tokenize", "-f", path).split()]
        if found != expected:
            wrong.append(f"{text!a}: {found}, expected {expected}")
    report(f"{len(TEXTS) + N_RANDOM} texts", not wrong, *wrong[:10])
    finish()


main()
