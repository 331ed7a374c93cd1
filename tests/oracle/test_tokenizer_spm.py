"""Token ids of SentencePiece vocabularies against the library sentencepiece (PyPI) on random text."""

import random
import subprocess
import unicodedata

import sentencepiece
from gguf import GGUFReader
from oracle import WORK, finish, report
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizer_texts import DATA, SAMPLES, our_ids, random_text

N_TEXTS = 4000


def sentencepiece_model(model):
    """The vocabulary of a GGUF as the library's own model."""
    fields = GGUFReader(model).fields
    made = proto.ModelProto()
    made.trainer_spec.model_type = proto.TrainerSpec.BPE
    made.trainer_spec.byte_fallback = True
    made.normalizer_spec.name = "identity"
    prefix = fields.get("tokenizer.ggml.add_space_prefix")
    made.normalizer_spec.add_dummy_prefix = prefix.contents() if prefix else True
    made.normalizer_spec.remove_extra_whitespaces = False
    keys = ["tokens", "scores", "token_type"]
    for text, score, kind in zip(*(fields[f"tokenizer.ggml.{key}"].contents() for key in keys), strict=True):
        # GGUF writes spaces in user-defined pieces, and its types are the library's.
        made.pieces.add(piece=text.replace(" ", "\u2581") if kind == 4 else text, score=score, type=kind)
    return sentencepiece.SentencePieceProcessor(model_proto=made.SerializeToString())


def compare(folder: str, file: str) -> None:
    packed = DATA / "tokenizers" / folder / f"{file}.zst"
    if not packed.exists():
        report(f"vocabulary {folder} # SKIP no {packed}", True)
        return
    model = WORK / f"{folder}.gguf"
    subprocess.run(["zstd", "-q", "-d", "-o", model, packed], check=True)
    oracle = sentencepiece_model(model)
    rng = random.Random(1)
    texts = SAMPLES + [random_text(rng, unicodedata) for _ in range(N_TEXTS)]
    ours = our_ids(model, texts)
    wrong = [(t, ids) for t, ids in zip(texts, ours, strict=True) if oracle.encode(t) != ids]
    notes = [f"{t!r}: {oracle.encode(t)} {ids}"[:600] for t, ids in wrong[:3]]
    report(f"vocabulary {folder}: {len(texts)} texts", not wrong, *([f"{len(wrong)} differ"] if wrong else []), *notes)


compare("llama-spm", "ggml-vocab-llama-spm.gguf")
compare("gemma3", "vocab.gguf")
finish()
