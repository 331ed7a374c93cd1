"""An independent forward pass of the qwen3 architecture: the PyPI package gguf reads and dequantises the file, NumPy
computes in double precision. It shares nothing with the project's code, so it can serve as an oracle for it."""

from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


class Qwen3:
    def __init__(self, path: Path):
        reader = GGUFReader(path)
        self.fields = reader.fields
        self.weights = {
            t.name: dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]).astype(np.float64) for t in reader.tensors
        }
        key = lambda name: self.fields["qwen3." + name].contents()
        self.n_layer = key("block_count")
        self.n_head = key("attention.head_count")
        self.n_head_kv = key("attention.head_count_kv")
        self.head_dim = key("attention.key_length")
        self.eps = key("attention.layer_norm_rms_epsilon")
        self.rope_base = key("rope.freq_base")

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.weights[name]

    def rotate(self, x):
        """x [position, head, head_dim]: element i turns with i + head_dim / 2."""
        half = self.head_dim // 2
        angle = np.arange(len(x))[:, None] * self.rope_base ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attention(self, x, block):
        w = lambda name: self.weights[f"{block}.{name}.weight"]
        n = len(x)
        q = (x @ w("attn_q").T).reshape(n, self.n_head, self.head_dim)
        k = (x @ w("attn_k").T).reshape(n, self.n_head_kv, self.head_dim)
        v = (x @ w("attn_v").T).reshape(n, self.n_head_kv, self.head_dim)
        q = self.rotate(self.norm(q, f"{block}.attn_q_norm.weight"))
        k = self.rotate(self.norm(k, f"{block}.attn_k_norm.weight"))
        out = np.empty_like(q)
        future = np.triu(np.ones((n, n), dtype=bool), 1)
        for head in range(self.n_head):
            group = head * self.n_head_kv // self.n_head
            score = q[:, head] @ k[:, group].T / np.sqrt(self.head_dim)
            score[future] = -np.inf
            weight = np.exp(score - score.max(axis=-1, keepdims=True))
            out[:, head] = weight @ v[:, group] / weight.sum(axis=-1, keepdims=True)
        return out.reshape(n, -1) @ w("attn_output").T

    def logits(self, tokens):
        """-> [position, vocabulary]"""
        x = self.weights["token_embd.weight"][tokens]
        for i in range(self.n_layer):
            block = f"blk.{i}"
            w = lambda name: self.weights[f"{block}.{name}.weight"]
            x = x + self.attention(self.norm(x, f"{block}.attn_norm.weight"), block)
            h = self.norm(x, f"{block}.ffn_norm.weight")
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        x = self.norm(x, "output_norm.weight")
        return x @ self.weights.get("output.weight", self.weights["token_embd.weight"]).T

    def greedy(self, tokens, n):
        """-> (the n tokens that follow, how far each was ahead of the second best)"""
        tokens, margins = list(tokens), []
        for _ in range(n):
            last = self.logits(tokens)[-1]
            best = int(last.argmax())
            margins.append(float(last[best] - np.partition(last, -2)[-2]))
            tokens.append(best)
        return tokens[-n:], margins
