"""Token ids against the Rust library tokenizers (PyPI): every pre-tokenizer, and real vocabularies, on random text."""

import random
import subprocess
import unicodedata
from pathlib import Path

from gguf import GGUFReader, GGUFWriter, TokenType
from oracle import WORK, finish, report
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizer_families import FALCON, FAMILIES
from tokenizer_texts import DATA, SAMPLES, our_ids, random_text

N_TEXTS = 4000


def byte_alphabet():
    """GPT-2's character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def texts(seed: int, old_tables: bool):
    """The oracle's NFC and its punctuation are of an old Unicode version: there newer characters tell nothing."""
    rng = random.Random(seed)
    unicode = unicodedata.ucd_3_2_0 if old_tables else unicodedata
    return SAMPLES + [random_text(rng, unicode) for _ in range(N_TEXTS)]


def compare(name: str, model: Path, tokens, merges, family, seed: int, added=()) -> None:
    pre_tokenizer, nfc, ignore_merges = family
    tokenizer = Tokenizer(BPE({t: i for i, t in enumerate(tokens)}, merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if nfc:
        tokenizer.normalizer = NFC()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    all_texts = texts(seed, nfc or family is FALCON)
    ours = our_ids(model, all_texts)
    wrong = [t for t, ids in zip(all_texts, ours, strict=True) if tokenizer.encode(t).ids != ids]
    notes = [f"{t!r}: {tokenizer.encode(t).ids} {ours[all_texts.index(t)]}"[:600] for t in wrong[:3]]
    report(f"{name}: {len(all_texts)} texts", not wrong, *([f"{len(wrong)} differ"] if wrong else []), *notes)


def pair_vocabulary():
    """Every byte and every pair of bytes: any two neighbours in a word join, so a word cut elsewhere has other ids."""
    letters = byte_alphabet()
    singles = [letters[b] for b in range(256)]
    order = [(a, b) for a in singles for b in singles]
    random.Random(9).shuffle(order)
    return singles + [a + b for a, b in order], order


def write_model(path: Path, name: str, tokens, merges) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def compare_families() -> None:
    tokens, merges = pair_vocabulary()
    for seed, (name, family) in enumerate(FAMILIES.items()):
        model = WORK / f"{name}.gguf"
        write_model(model, name, tokens, merges)
        compare(f"pre-tokenizer {name}", model, tokens, merges, family, seed)


def compare_real_vocabularies() -> None:
    files = {"gpt-2": "ggml-vocab-gpt-2.gguf", "deepseek-coder": "ggml-vocab-deepseek-coder.gguf",
             "falcon": "ggml-vocab-falcon.gguf", "qwen3": "vocab.gguf", "gptoss": "vocab.gguf"}
    names = {"qwen3": "qwen2", "gptoss": "gpt-4o"}
    for seed, (folder, file) in enumerate(files.items()):
        packed = DATA / "tokenizers" / folder / f"{file}.zst"
        if not packed.exists():
            report(f"vocabulary {folder} # SKIP no {packed}", True)
            continue
        model = WORK / f"vocabulary-{folder}.gguf"
        subprocess.run(["zstd", "-q", "-d", "-o", model, packed], check=True)
        fields = GGUFReader(model).fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
        family = FALCON if folder == "falcon" else FAMILIES[names.get(folder, folder)]
        types = fields["tokenizer.ggml.token_type"].contents()
        added = [t for t, kind in zip(tokens, types, strict=True) if kind == TokenType.USER_DEFINED and "[PAD" not in t]
        compare(f"vocabulary {folder}", model, tokens, merges, family, 100 + seed, added)


compare_families()
compare_real_vocabularies()
finish()
