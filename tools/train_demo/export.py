"""Writes a trained demo model as GGUF: python3 export.py --run DIR --out plans/demo.gguf

Matrices become Q8_0 (blocks of 32: an f16 scale, then 32 signed bytes), vectors stay F32. The layout is GGUF version 3:
header, metadata, tensor directory, then the data, each tensor aligned to 32 bytes.
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np

import bpe
import corpus
from train import CFG, LONG_WINDOW

ALIGNMENT = 32
U32, F32_VALUE, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
TENSOR_F32, TENSOR_Q8_0 = 0, 8
FILE_TYPE_MOSTLY_Q8_0 = 7
QUANTIZATION_VERSION = 2
TOKEN_NORMAL, TOKEN_CONTROL = 1, 3
Q8_BLOCK = 32


def packed_string(s: str) -> bytes:
    data = s.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def metadata(vocab: bpe.Vocabulary) -> list[tuple[str, bytes]]:
    """Every key with its packed type and value."""
    u32 = lambda v: struct.pack("<II", U32, v)
    f32 = lambda v: struct.pack("<If", F32_VALUE, v)
    flag = lambda v: struct.pack("<IB", BOOL, v)
    text = lambda v: struct.pack("<I", STRING) + packed_string(v)
    array = lambda kind, items: struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(items)

    n_bytes_and_merges = CFG.n_vocab - 1
    tokens = [vocab.spelling(i) for i in range(n_bytes_and_merges)] + [corpus.END_OF_TEXT]
    types = [TOKEN_NORMAL] * n_bytes_and_merges + [TOKEN_CONTROL]
    merges = [f"{vocab.spelling(a)} {vocab.spelling(b)}" for a, b in vocab.merges]
    end_of_text = CFG.n_vocab - 1
    return [
        ("general.architecture", text("qwen3")),
        ("general.name", text("ATSI demo")),
        ("general.description", text("A very small model trained on the six novels of Jane Austen")),
        ("general.license", text("mit")),
        ("general.file_type", u32(FILE_TYPE_MOSTLY_Q8_0)),
        ("general.quantization_version", u32(QUANTIZATION_VERSION)),
        ("qwen3.block_count", u32(CFG.n_layer)),
        ("qwen3.context_length", u32(LONG_WINDOW)),
        ("qwen3.embedding_length", u32(CFG.n_embd)),
        ("qwen3.feed_forward_length", u32(CFG.n_ff)),
        ("qwen3.attention.head_count", u32(CFG.n_head)),
        ("qwen3.attention.head_count_kv", u32(CFG.n_head_kv)),
        ("qwen3.attention.key_length", u32(CFG.head_dim)),
        ("qwen3.attention.value_length", u32(CFG.head_dim)),
        ("qwen3.attention.layer_norm_rms_epsilon", f32(CFG.norm_eps)),
        ("qwen3.rope.freq_base", f32(CFG.rope_base)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("qwen2")),
        ("tokenizer.ggml.tokens", array(STRING, [packed_string(t) for t in tokens])),
        ("tokenizer.ggml.token_type", array(I32, [struct.pack("<i", t) for t in types])),
        ("tokenizer.ggml.merges", array(STRING, [packed_string(m) for m in merges])),
        ("tokenizer.ggml.eos_token_id", u32(end_of_text)),
        ("tokenizer.ggml.padding_token_id", u32(end_of_text)),
        ("tokenizer.ggml.add_bos_token", flag(False)),
    ]


def gguf_tensors(weights) -> list[tuple[str, np.ndarray]]:
    """The weights under their GGUF names, one array a tensor, [outputs, inputs]."""
    found = [("token_embd.weight", weights["token_embd"]), ("output_norm.weight", weights["output_norm"])]
    for i in range(CFG.n_layer):
        for key in weights:
            if key.startswith("layers."):
                found.append((f"blk.{i}.{key.removeprefix('layers.')}.weight", weights[key][i]))
    return found


def q8_0(x: np.ndarray) -> bytes:
    """Rows of blocks: scale = the largest magnitude / 127 as f16, then the rounded quotients."""
    blocks = x.astype(np.float32).reshape(-1, Q8_BLOCK)
    scale = np.abs(blocks).max(axis=1) / 127
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    record = np.zeros(len(blocks), dtype=[("scale", "<f2"), ("q", "i1", Q8_BLOCK)])
    record["scale"] = scale
    record["q"] = np.rint(blocks * inverse[:, None])
    return record.tobytes()


def write(path: Path, vocab: bpe.Vocabulary, weights) -> None:
    keys = metadata(vocab)
    directory, data = b"", b""
    tensors = gguf_tensors(weights)
    for name, x in tensors:
        data += b"\0" * (-len(data) % ALIGNMENT)
        kind = TENSOR_F32 if x.ndim == 1 else TENSOR_Q8_0
        ne = x.shape[::-1]
        directory += packed_string(name) + struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
        directory += struct.pack("<IQ", kind, len(data))
        data += x.astype("<f4").tobytes() if x.ndim == 1 else q8_0(x)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(packed_string(k) + v for k, v in keys) + directory
    path.write_bytes(head + b"\0" * (-len(head) % ALIGNMENT) + data)


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--run", type=Path, required=True, help="the folder that train.py wrote")
    args.add_argument("--out", type=Path, required=True)
    args = args.parse_args()
    merges = [tuple(pair) for pair in json.loads((args.run / "vocab.json").read_text())["merges"]]
    with np.load(args.run / "weights.npz") as weights:
        write(args.out, bpe.Vocabulary(merges), dict(weights))
    print(f"{args.out}: {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
