"""Trains the demo model: python3 train.py --package ROOT --out DIR --minutes 60

Matrices are optimised by momentum with orthogonalised updates (Muon: Jordan et al. 2024), the embedding and the norms by
Adam. The learning rate follows the share of the time that has passed: full at first, then falling in a line to zero.
DIR receives vocab.json and, every ten minutes and at the end, weights.npz, from which --resume goes on.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bpe
import corpus
import model

CFG = model.Config()
MATRIX_RATE, VECTOR_RATE = 0.02, 0.003
MATRIX_DECAY = 0.1
MOMENTUM = 0.95
ADAM_BETAS = (0.9, 0.98)
WARMUP_STEPS = 50
DECAY_FROM = 0.35  # share of the time after which the rate falls
LONG_FROM = 0.85  # share of the time after which windows are of the full context length
SHORT_WINDOW, LONG_WINDOW = 256, 512
TOKENS_A_STEP = 2048
VALIDATION_EVERY = 40  # every how-manieth chapter is held out
CHECKPOINT_S = 600
SAMPLE_PROMPT = "Once upon a time"


def orthogonalised(g):
    """A matrix of about the same singular vectors as g, all singular values near 1 (quintic Newton-Schulz)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else jnp.swapaxes(g, -1, -2)
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
    for _ in range(5):
        s = x @ jnp.swapaxes(x, -1, -2)
        x = a * x + (b * s + c * s @ s) @ x
    return x if wide else jnp.swapaxes(x, -1, -2)


def is_matrix(path) -> bool:
    name = path[-1].key
    return not name.endswith("norm") and name != "token_embd"


@jax.jit
def update(params, state, grads, step, scale):
    """One optimiser step; state holds the first and second moments (the second is unused for matrices)."""

    def one(path, p, m, v, g):
        if is_matrix(path):
            m = MOMENTUM * m + g
            direction = orthogonalised(g + MOMENTUM * m) * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
            rate = MATRIX_RATE * scale
            return p * (1 - rate * MATRIX_DECAY) - rate * direction, m, v
        b1, b2 = ADAM_BETAS
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        m_hat, v_hat = m / (1 - b1 ** (step + 1)), v / (1 - b2 ** (step + 1))
        return p - VECTOR_RATE * scale * m_hat / (jnp.sqrt(v_hat) + 1e-8), m, v

    out = jax.tree_util.tree_map_with_path(one, params, state[0], state[1], grads)
    pick = lambda i: jax.tree.map(lambda t: t[i], out, is_leaf=lambda t: isinstance(t, tuple))
    return pick(0), (pick(1), pick(2))


loss_and_grad = jax.jit(jax.value_and_grad(lambda p, t: model.loss(p, t, CFG)))
loss_only = jax.jit(lambda p, t: model.loss(p, t, CFG))


def batches(tokens: np.ndarray, rng, window_of):
    """Yields batches without end; each pass over the text starts at another offset and shuffles the windows."""
    while True:
        window = window_of()
        starts = np.arange(rng.integers(window), len(tokens) - window - 1, window)
        rng.shuffle(starts)
        n = TOKENS_A_STEP // window
        for i in range(0, len(starts) - n + 1, n):
            yield np.stack([tokens[s : s + window + 1] for s in starts[i : i + n]])
            if window_of() != window:
                break


def validation_loss(params, tokens: np.ndarray) -> float:
    n = (len(tokens) - 1) // LONG_WINDOW
    losses = [loss_only(params, tokens[None, i * LONG_WINDOW : (i + 1) * LONG_WINDOW + 1]) for i in range(n)]
    return float(np.mean(losses))


def sample(params, vocab, prompt: str, n: int, temperature: float, rng) -> str:
    """Plain sampling without a cache: slow, only to look at the progress."""
    ids = vocab.encode(prompt)
    next_logits = jax.jit(lambda p, t, i: model.logits(p, t, CFG)[0, i])
    for _ in range(n):
        padded = np.zeros((1, SHORT_WINDOW), np.int32)
        padded[0, : len(ids)] = ids
        out = np.asarray(next_logits(params, padded, len(ids) - 1))
        if temperature == 0:
            ids.append(int(out.argmax()))
        else:
            ids.append(int((out / temperature + rng.gumbel(size=out.shape)).argmax()))
        if ids[-1] == CFG.n_vocab - 1:
            break
    return vocab.decode([i for i in ids if i < CFG.n_vocab - 1])


def encode_corpus(text: str, vocab) -> tuple[np.ndarray, np.ndarray]:
    """-> (training tokens, held-out tokens), a final END_OF_TEXT token after every chapter."""
    train, held_out = [], []
    for i, chapter in enumerate(text.split(corpus.END_OF_TEXT)):
        part = held_out if i % VALIDATION_EVERY == VALIDATION_EVERY - 1 else train
        part += vocab.encode(chapter) + [CFG.n_vocab - 1]
    return np.array(train, np.int32), np.array(held_out, np.int32)


def save(path: Path, params) -> None:
    flat = {k: np.asarray(v) for k, v in params.items() if k != "layers"}
    flat |= {"layers." + k: np.asarray(v) for k, v in params["layers"].items()}
    tmp = path.with_suffix(".tmp.npz")
    np.savez(tmp, **flat)
    tmp.replace(path)


def load(path: Path) -> dict:
    with np.load(path) as flat:
        params = {k: jnp.asarray(v) for k, v in flat.items() if not k.startswith("layers.")}
        params["layers"] = {
            k.removeprefix("layers."): jnp.asarray(v) for k, v in flat.items() if k.startswith("layers.")
        }
    return params


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--package", type=Path, required=True, help="where r-cran-janeaustenr is unpacked")
    args.add_argument("--out", type=Path, required=True)
    args.add_argument("--minutes", type=float, default=60)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--resume", action="store_true", help="start from DIR/weights.npz")
    args = args.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    text = corpus.load(args.package)
    vocab = bpe.train(text.replace(corpus.END_OF_TEXT, "\n"), CFG.n_vocab - 256 - 1)
    (args.out / "vocab.json").write_text(json.dumps({"merges": vocab.merges}))
    tokens, held_out = encode_corpus(text, vocab)
    print(f"{len(text)} characters, {len(tokens)} + {len(held_out)} tokens", flush=True)

    weights = args.out / "weights.npz"
    params = load(weights) if args.resume else model.init(CFG, jax.random.PRNGKey(args.seed))
    state = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))
    rng = np.random.default_rng(args.seed)
    start = saved = time.monotonic()
    done = lambda: (time.monotonic() - start) / (60 * args.minutes)
    source = batches(tokens, rng, lambda: LONG_WINDOW if done() >= LONG_FROM else SHORT_WINDOW)
    step, mean = 0, None
    while done() < 1:
        share = done()
        scale = min(1, (step + 1) / WARMUP_STEPS) * min(1, (1 - share) / (1 - DECAY_FROM))
        value, grads = loss_and_grad(params, next(source))
        params, state = update(params, state, grads, step, scale)
        mean = float(value) if mean is None else 0.95 * mean + 0.05 * float(value)
        step += 1
        if step % 50 == 0:
            print(f"step {step}  time {share:.1%}  training loss {mean:.3f}", flush=True)
        if time.monotonic() - saved > CHECKPOINT_S or done() >= 1:
            saved = time.monotonic()
            save(weights, params)
            print(f"step {step}  held-out loss {validation_loss(params, held_out):.3f}")
            print("  greedy: " + sample(params, vocab, SAMPLE_PROMPT, 60, 0, rng))
            print("  0.8:    " + sample(params, vocab, SAMPLE_PROMPT, 60, 0.8, rng), flush=True)


if __name__ == "__main__":
    main()
