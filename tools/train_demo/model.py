"""The demo model: the Qwen3 decoder at a small size, in JAX.

Root-mean-square norms (also on every query and key head, before the rotation), grouped-query attention, rotary positions
on half-split pairs, a SiLU-gated feed-forward unit, and an output matrix tied to the embedding. Weight matrices are kept
as [outputs, inputs], which is how GGUF stores them.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Config:
    n_vocab: int = 4096
    n_embd: int = 256
    n_layer: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_ff: int = 512
    rope_base: float = 10000.0
    norm_eps: float = 1e-6


def init(cfg: Config, key) -> dict:
    """Random weights. Layers are stacked along the first axis; what writes to the residual stream starts at zero."""
    d, f = cfg.n_embd, cfg.n_ff
    d_q, d_kv = cfg.n_head * cfg.head_dim, cfg.n_head_kv * cfg.head_dim
    keys = jax.random.split(key, 6)

    def matrix(k, rows, cols):
        return jax.random.normal(k, (cfg.n_layer, rows, cols)) * cols**-0.5

    layers = {
        "attn_norm": jnp.ones((cfg.n_layer, d)),
        "attn_q": matrix(keys[0], d_q, d),
        "attn_k": matrix(keys[1], d_kv, d),
        "attn_v": matrix(keys[2], d_kv, d),
        "attn_q_norm": jnp.ones((cfg.n_layer, cfg.head_dim)),
        "attn_k_norm": jnp.ones((cfg.n_layer, cfg.head_dim)),
        "attn_output": jnp.zeros((cfg.n_layer, d, d_q)),
        "ffn_norm": jnp.ones((cfg.n_layer, d)),
        "ffn_gate": matrix(keys[3], f, d),
        "ffn_up": matrix(keys[4], f, d),
        "ffn_down": jnp.zeros((cfg.n_layer, d, f)),
    }
    return {
        "token_embd": jax.random.normal(keys[5], (cfg.n_vocab, d)) * 0.02,
        "output_norm": jnp.ones(d),
        "layers": layers,
    }


def rms_norm(x, weight, eps):
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (x32 * scale * weight).astype(x.dtype)


def rotate(x, cfg: Config):
    """x: [batch, position, head, head_dim]; element i pairs with i + head_dim / 2."""
    half = cfg.head_dim // 2
    freq = cfg.rope_base ** (-jnp.arange(half) / half)
    angle = jnp.arange(x.shape[1])[:, None] * freq
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(x, w, cfg: Config):
    n_batch, n_pos, _ = x.shape
    q = (x @ w["attn_q"].T).reshape(n_batch, n_pos, cfg.n_head, cfg.head_dim)
    k = (x @ w["attn_k"].T).reshape(n_batch, n_pos, cfg.n_head_kv, cfg.head_dim)
    v = (x @ w["attn_v"].T).reshape(n_batch, n_pos, cfg.n_head_kv, cfg.head_dim)
    q = rotate(rms_norm(q, w["attn_q_norm"], cfg.norm_eps), cfg)
    k = rotate(rms_norm(k, w["attn_k_norm"], cfg.norm_eps), cfg)
    q = q.reshape(n_batch, n_pos, cfg.n_head_kv, cfg.n_head // cfg.n_head_kv, cfg.head_dim)
    score = jnp.einsum("bqhgd,bkhd->bhgqk", q, k).astype(jnp.float32) * cfg.head_dim**-0.5
    causal = jnp.tril(jnp.ones((n_pos, n_pos), dtype=bool))
    weight = jax.nn.softmax(jnp.where(causal, score, -1e9), axis=-1).astype(x.dtype)
    out = jnp.einsum("bhgqk,bkhd->bqhgd", weight, v)
    return out.reshape(n_batch, n_pos, -1) @ w["attn_output"].T


def hidden(params, tokens, cfg: Config, dtype=jnp.float32):
    """tokens [batch, position] -> the normed last hidden state [batch, position, n_embd]."""
    x = params["token_embd"][tokens].astype(dtype)

    def layer(x, w):
        w = {k: (v if k.endswith("norm") else v.astype(dtype)) for k, v in w.items()}
        x = x + attention(rms_norm(x, w["attn_norm"], cfg.norm_eps), w, cfg)
        h = rms_norm(x, w["ffn_norm"], cfg.norm_eps)
        return x + (jax.nn.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T, None

    for i in range(cfg.n_layer):
        x, _ = layer(x, {k: v[i] for k, v in params["layers"].items()})
    return rms_norm(x, params["output_norm"], cfg.norm_eps)


def logits(params, tokens, cfg: Config, dtype=jnp.float32):
    return (hidden(params, tokens, cfg, dtype) @ params["token_embd"].astype(dtype).T).astype(jnp.float32)


def loss(params, tokens, cfg: Config, dtype=jnp.float32):
    """Mean cross-entropy of each token given those before it; tokens [batch, position + 1]."""
    out = logits(params, tokens[:, :-1], cfg, dtype)
    picked = jnp.take_along_axis(out, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(out, axis=-1) - picked)
