#!/usr/bin/env python3
"""Logits of synthetic models of every family and tensor type, compared with llama.cpp's.

    tests/oracle/llama_cpp_logits.py [--families] [--types] [--widths] [--only WORD]

prints tables in Markdown, as they stand in docs/oracles.md (without an option all of them; layers of full width take up to 6 GB of
disk and half a minute each), and fails when a mean KL divergence is 0.01 or more. llama.cpp comes
with llama-cpp-python (pip install llama-cpp-python==0.3.36 numpy; it compiles llama.cpp, which takes a while, so
`make oracle` leaves this out). With ATSI_REFERENCE=PROGRAM another build of it is asked: PROGRAM MODEL TOKENS OUT writes float32 logits
of all tokens (ids separated by spaces in the file TOKENS) to OUT.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("B", "build")
N_TOKENS, N_VOCAB, MAX_KL = 256, 1024, 0.01

# Real head sizes and ratios where they matter, narrow streams, the fewest layers in which every kind of layer occurs.
DENSE = "--embd 512 --heads 8 --kv-heads 2 --head-dim 64 --ff 1024"
MOE = "--embd 512 --heads 8 --kv-heads 2 --head-dim 64 --expert-ff 256"
FAMILIES = {
    "llama": ("llama3.1-8b", f"--layers 2 {DENSE}"),
    "llama, experts": ("mixtral-8x7b", f"--layers 2 {MOE}"),
    "qwen2": ("qwen2.5-7b", f"--layers 2 {DENSE}"),
    "qwen2moe": ("qwen1.5-moe-a2.7b", f"--layers 2 {MOE}"),
    "qwen3": ("qwen3-14b", f"--layers 2 {DENSE}"),
    "qwen3, tied": ("qwen3-1.7b", f"--layers 2 {DENSE}"),
    "qwen3moe": ("qwen3-30b-a3b", f"--layers 2 --experts 32 {MOE}"),
    "qwen3next": ("qwen3-next-80b-a3b", f"--layers 4 --experts 64 {MOE}"),
    "qwen35": ("qwen3.5-27b", f"--layers 4 {DENSE}"),
    "qwen35moe": ("qwen3.5-122b-a10b", f"--layers 4 --experts 32 {MOE}"),
    "gemma3": ("gemma3-27b", f"--layers 7 {DENSE}"),
    "gpt-oss": ("gpt-oss-20b", f"--layers 2 {MOE}"),
    "glm4": ("glm-z1-9b", f"--layers 2 {DENSE}"),
    "glm4moe": ("glm4.5-air", f"--layers 3 --experts 32 --ff 512 {MOE}"),
    "phi3": ("phi-4", f"--layers 2 {DENSE}"),
    "phi3, factors": ("phi-4-mini", f"--layers 2 {DENSE}"),
    "mistral3": ("ministral-3-14b", f"--layers 2 {DENSE}"),
    "minimax-m2": ("minimax-m2", f"--layers 2 --experts 32 {MOE}"),
    "seed_oss": ("seed-oss-36b", f"--layers 2 {DENSE}"),
    "ernie4_5": ("ernie-4.5-0.3b", f"--layers 2 {DENSE}"),
    "ernie4_5-moe": ("ernie-4.5-21b-a3b", f"--layers 3 --experts 32 --ff 512 {MOE} --embd 1024"),
}
# Layers of the real size, few of them, in the type in which the model is usually found; of very many experts only some. MiniMax-M2's
# sigmoid scores give the chosen experts nearly equal weights, so that a near tie that falls the other way costs ten times what it costs
# others (docs/oracles.md): all of its experts are in use.
WIDTHS = {
    "llama3.1-8b": (2, "", "q4_k_m"),
    "llama3.1-70b": (1, "", "q4_k_m"),
    "mixtral-8x7b": (1, "", "q4_k_m"),
    "qwen2.5-7b": (2, "", "q4_k_m"),
    "qwen1.5-moe-a2.7b": (2, "", "q4_k_m"),
    "qwen3-1.7b": (2, "", "q8_0"),
    "qwen3-14b": (2, "", "q4_k_m"),
    "qwen3-30b-a3b": (2, "", "q4_k_m"),
    "qwen3-next-80b-a3b": (4, "", "q4_k_m"),
    "qwen3.5-27b": (4, "", "q4_k_m"),
    "qwen3.5-122b-a10b": (4, "--experts 64", "q4_k_m"),
    "gemma3-27b": (6, "", "q4_k_m"),
    "gpt-oss-20b": (2, "", "mxfp4"),
    "gpt-oss-120b": (2, "", "mxfp4"),
    "glm-z1-9b": (2, "", "f16"),
    "glm4.5-air": (2, "--experts 32", "q4_k_m"),
    "phi-4": (2, "", "q4_k_m"),
    "phi-4-mini": (2, "", "q4_k_m"),
    "ministral-3-14b": (2, "", "q4_k_m"),
    "mistral-small-24b": (2, "", "q4_k_m"),
    "minimax-m2": (2, "--experts 16 --used 16", "q4_k_m"),
    "seed-oss-36b": (2, "", "q4_k_m"),
    "ernie-4.5-0.3b": (2, "", "q8_0"),
    "ernie-4.5-21b-a3b": (3, "", "q4_k_m"),
}
RECIPES = ["q4_k_m", "q8_0", "f16", "dynamic", "mxfp4"]
TYPES = (
    "f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 "
    "iq3_s iq3_xxs iq2_s iq2_xs iq2_xxs iq1_s iq1_m"
).split()


def run(*command) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def llama_cpp_logits(model: Path, tokens: list[int], out: Path) -> None:
    import llama_cpp

    llm = llama_cpp.Llama(
        model_path=str(model), n_ctx=512, n_batch=512, n_gpu_layers=0, n_threads=1, logits_all=True, verbose=False
    )
    llm.eval(tokens)
    llm.scores[: len(tokens)].astype("<f4").tofile(out)


def compare(work: Path, shape: str, sizes: str, recipe: str) -> tuple[float, str]:
    """The mean KL divergence and the line of compare_logits."""
    model, plan, theirs, ours = (work / name for name in ("m.gguf", "m.atsp", "theirs.f32", "ours.f32"))
    generator = random.Random(3)
    tokens = [generator.randrange(N_VOCAB) for _ in range(N_TOKENS)]
    tokens_file = work / "tokens.txt"
    tokens_file.write_text(" ".join(map(str, tokens)))
    run(BUILD / "tools/synth_model", shape, model, "--recipe", recipe, "--vocab-size", N_VOCAB, *sizes.split())
    if os.environ.get("ATSI_REFERENCE"):
        run(os.environ["ATSI_REFERENCE"], model, tokens_file, theirs)
    else:
        llama_cpp_logits(model, tokens, theirs)
    run(BUILD / "atsi-plan", model, "--vram", 0, "--ctx", 512, "-o", plan)
    run(BUILD / "atsi-run", plan, "--device", "cpu", "--tokens-in", tokens_file, "-n", 0, "--logits", ours)
    line = run(BUILD / "tools/compare_logits", theirs, ours, "--vocab", N_VOCAB).strip()
    return float(re.search(r" kl=(\S+)", line).group(1)), line


def table(title: str, rows: dict, columns: list[str], only: str) -> int:
    """Prints KL divergences; rows are families, columns recipes. Returns how many cells are too large or failed."""
    n_bad = 0
    print(f"| {title} | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, (shape, sizes) in rows.items():
        if only not in name:
            continue
        cells = []
        for recipe in columns:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    kl, line = compare(Path(folder), shape, sizes, recipe)
                    cells.append(f"{kl:.1e}")
                    n_bad += not kl < MAX_KL
                except RuntimeError as failure:
                    line = str(failure)
                    cells.append("failed")
                    n_bad += 1
            print(f"{name} {recipe}: {line}", file=sys.stderr)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print()
    return n_bad


def widths(only: str) -> int:
    """The table of layers of full width. Returns how many rows are too large or failed."""
    n_bad = 0
    print("| shape | layers | recipe | KL | largest KL of a token |\n|---|---|---|---|---|")
    for shape, (n_layers, sizes, recipe) in WIDTHS.items():
        if only not in shape:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                kl, line = compare(Path(folder), shape, f"--layers {n_layers} {sizes}", recipe)
                largest = float(re.search(r" kl_max=(\S+)", line).group(1))
                cells = f"{kl:.1e} | {largest:.1e}"
                n_bad += not kl < MAX_KL
            except RuntimeError as failure:
                line, cells = str(failure), "failed | "
                n_bad += 1
        print(f"{shape} {recipe}: {line}", file=sys.stderr)
        name = shape + re.sub(r"--experts (\d+)", r", \1 experts", sizes).replace(" --used", ", used:")
        print(f"| {name} | {n_layers} | {recipe} | {cells} |", flush=True)
    print()
    return n_bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", action="store_true", help="only every family in the recipes of uploads")
    parser.add_argument("--types", action="store_true", help="only every tensor type in a dense and a MoE family")
    parser.add_argument("--widths", action="store_true", help="only layers of full width, every shape in its usual type")
    parser.add_argument("--only", default="", help="only families whose name holds this word")
    options = parser.parse_args()
    everything = not (options.families or options.types or options.widths)
    n_bad = 0
    if options.families or everything:
        n_bad += table("family", FAMILIES, RECIPES, options.only)
    if options.widths or everything:
        n_bad += widths(options.only)
    if options.types or everything:
        rows = {name: FAMILIES[name] for name in ("qwen3", "qwen3moe")}
        for first in range(0, len(TYPES), 8):
            n_bad += table("family", rows, TYPES[first : first + 8], options.only)
    sys.exit(1 if n_bad else 0)


main()
