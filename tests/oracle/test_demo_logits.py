"""Logits and greedy text of the demo model against the NumPy oracle."""

import numpy as np
from oracle import MODEL, WORK, demo_plan, finish, report, run
from qwen3_numpy import Qwen3

PROMPTS = [[79], [79, 1017, 873, 258, 579], list(range(300, 1500, 15))]
N_GREEDY = 24
# Integer activations round each input of a matrix to 1/127 of its block's largest; measured on quantised dense models
# this moves the logits by 0.05 to 0.08 rms.
MAX_RMS = 0.12
# Two logits can swap when they are closer than a few times that.
SAFE_MARGIN = 0.5


def tokens_file(tokens):
    path = WORK / "tokens.txt"
    path.write_text(" ".join(map(str, tokens)))
    return path


def agreement(found, expected, margins):
    """How many leading tokens agree, and whether the first difference, if any, is a near tie."""
    for i, (a, b) in enumerate(zip(found, expected)):
        if a != b:
            return i, margins[i] < SAFE_MARGIN
    return len(expected), len(found) == len(expected)


def main():
    oracle = Qwen3(MODEL)
    plan = demo_plan("--kv-type", "f32")
    for tokens in PROMPTS:
        expected = oracle.logits(tokens)
        out = WORK / "logits.f32"
        run("atsi-run", plan, "--tokens-in", tokens_file(tokens), "--logits", out, "-n", 0, "--device", "cpu")
        found = np.fromfile(out, "<f4").reshape(len(tokens), -1)
        rms = float(np.sqrt(np.mean((found - expected) ** 2)))
        report(f"logits of {len(tokens)} tokens", rms < MAX_RMS, f"rms {rms:.4f}")
        words = run(
            "atsi-run", plan, "--tokens-in", tokens_file(tokens), "-n", N_GREEDY, "--temp", 0, "--ignore-eos",
            "--print-ids", "--device", "cpu",
        ).split()
        ids, margins = oracle.greedy(tokens, N_GREEDY)
        n_same, good = agreement(list(map(int, words)), ids, margins)
        report(f"greedy tokens after {len(tokens)}", good, f"{n_same} of {N_GREEDY} agree")
    finish()


main()
