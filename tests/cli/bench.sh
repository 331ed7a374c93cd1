#!/usr/bin/env bash
# The scripts of tests/bench run to their end on tiny models and the simulated card, and say what they are there to say. Not what
# the figures are.
. "$(dirname "$0")/../support/cli.sh"
profile=plans/h200-xeon-16.json
export B DEVICE=sim:$profile PROFILE=$profile VOCAB=512 VRAM=605M WORK=$work/models OUT=$work
export SHRINK="--layers 2 --embd 256 --heads 4 --kv-heads 2 --head-dim 64 --ff 512 --vocab-size 512"

# says WORDS COMMAND...: ends well and prints a line with the words (a regular expression).
says() {
    "${@:2}" >"$work/out" 2>&1 && grep -qE -- "$1" "$work/out" && return
    cat "$work/out"
    return 1
}
ablation() { PROMPT=24 TOKENS=6 tests/bench/ablation.sh qwen3-1.7b; }
under_load() { PHASE_SECONDS=0.5 RUNS=1 SHAPE=qwen3-1.7b CPU_LOAD="--cpu 20 --threads 1" CARD_LOAD="--memory 0.1 --threads 1" tests/bench/under_load.sh; }
vram() { SHAPE=qwen3-1.7b BUDGETS=1 CONTEXTS=1024 tests/bench/vram.sh; }
full_size() { PROMPT=24 TOKENS=4 tests/bench/full_size.sh "gpt-oss-20b 605M --experts 8 --used 2 --expert-ff 256"; }
# peer DEPTH: one of fixed speed: which file, how many threads and tokens it is asked for come with the call.
peer() { printf '#!/bin/sh\n[ -r "$1" ] && [ "$2 $3 $4 $5" = "1 24 6 %s" ] && echo "prefill 10" && echo "decode 5"\n' "$1" >"$work/peer" && chmod +x "$work/peer"; }
pair() { peer 8 && DEVICE=cpu PEER=$work/peer THREADS=1 PREFILL=24 TOKENS=6 DEPTH=8 tests/bench/pair.sh "qwen3-1.7b 2 --recipe q8_0"; }
# Large enough that some experts are placed one by one.
with_experts="--layers 2 --embd 512 --heads 8 --kv-heads 2 --head-dim 64 --experts 32 --expert-ff 512 --vocab-size 512"
ablation_of_experts() { SHRINK=$with_experts VRAM=600M CTX=512 PROMPT=24 TOKENS=6 STEPS="+TP +2U +2P" tests/bench/ablation.sh qwen3-30b-a3b; }
experts() {
    peer 24 && SHRINK=$with_experts VRAM=616M CTX=512 PEER=$work/peer \
        THREADS=1 PROMPT=24 TOKENS=6 COUNT_PROMPT=24 COUNT_TOKENS=8 LONG=12 WAYS="counted peer unit few still" TRACE=4 tests/bench/experts.sh "qwen3-30b-a3b 2"
}

# Of 8 GB of experts a token uses 2, of which three quarters are found on the card.
floor() {
    echo '{"units": [{"name": "blk.0.ffn_up_exps", "side": "cpu", "gpu_bytes": 8e9}, {"name": "blk.0.attn_q", "side": "gpu", "gpu_bytes": 1e9}], "experts": {"n_of": 8}}' |
        tests/bench/floor.py 0 1 2/8 1000 50 50 75
}

if ! command -v python3 >/dev/null; then
    skip "the scripts of tests/bench" "no python3"
    finish
    exit
fi
check "ablation" says '^qwen3-1.7b *\+2P .*decode.*T/floor' ablation
check "ablation: the base too" grep -q '^qwen3-1.7b *base ' "$work/out"
check "ablation of experts" says '^qwen3-30b-a3b *\+2P .*T/floor' ablation_of_experts
check "ablation of experts: whole units on both sides too" grep -q '^qwen3-30b-a3b *+2U ' "$work/out"
check "floor of experts one by one" says '^2.500 0.500 5.00$' floor
check "under load" says 'CPU 60 % *load-aware' under_load
check "under load: a picture" grep -q '<polyline' "$work/under_load.svg"
check "budgets" says '0 points are not as promised' vram
check "full size" says '^gpt-oss-20b .*prefill [0-9.]* tok/s .*decode' full_size
check "beside a peer" says 'decode .*peer 5 .*2 runs' pair
check "experts" says '^qwen3-30b-a3b *counted .*2 runs.*of unit [0-9.]* *found [0-9.]* % \(expected [0-9.]*\) *predicted [0-9.]* ms' experts
check "experts: every way" sh -c "[ \$(grep -cE '^qwen3-30b-a3b +(unit|few|still|peer) .*2 runs' '$work/out') -eq 4 ]"
check "experts: a trace" sh -c "zcat '$work/qwen3-30b-a3b.trace.json.gz' | grep -q traceEvents"
check "nothing is left behind" sh -c "! [ -e '$work/models' ]"
finish
