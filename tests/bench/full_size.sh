#!/usr/bin/env bash
# Large models planned and run at full layer size: rates, memory, prediction and floor of each.
#   tests/bench/full_size.sh ["SHAPE VRAM SYNTH_OPTIONS..."...]
# Default: GLM-Z1-9B in F16 whole at 6 GiB, and of the paper's four largest models a quarter of the layers at a quarter of 24 GiB.
# A prompt of PROMPT=512 tokens, then TOKENS=32. Each model is deleted before the next is made.
# Settings that all scripts here share: tests/bench/common.sh.
set -uo pipefail
. "$(dirname "$0")/common.sh"
n_prompt=${PROMPT:-512} n_tokens=${TOKENS:-32} ctx=4096
[ $# -gt 0 ] || set -- "glm-z1-9b 6G --recipe f16" "llama3.1-70b 6G --layers 20" "qwen3-next-80b-a3b 6G --layers 12" \
    "qwen3.5-122b-a10b 6G --layers 12" "gpt-oss-120b 6G --layers 9"

report() { # SHAPE VRAM PEAK
    local log=$WORK/log decode ms predicted floor_ms resident host
    decode=$(rate decode "$log")
    ms=$(awk -v d="$decode" 'BEGIN { printf "%.2f", 1000 / d }')
    predicted=$(predicted_ms "$log" "$WORK/m.atsp")
    read -r resident host floor_ms < <(floor "$WORK/m.atsp" "$1" $((n_prompt + n_tokens / 2)) $ctx)
    printf '%-18s %s, peak %s MiB: prefill %.1f tok/s (planned %s), decode %.2f tok/s = %s ms (predicted %s, %s of measured; floor %s, T/floor %s; reads %s GB on the card, %s on the host)\n' \
        "$1" "$2" "$3" "$(rate prefill "$log")" "$(planned_prefill "$WORK/m.atsp")" "$decode" "$ms" \
        "$predicted" "$(ratio "$predicted" "$ms")" "$floor_ms" "$(ratio "$ms" "$floor_ms")" "$resident" "$host"
    grep -E '^(load|memory|rounds|decided)' "$log" | sed 's/^/    /'
}

one() { # SHAPE VRAM SYNTH_OPTIONS...
    rm -f "$WORK"/*.gguf "$WORK"/m.atsp*
    model "$1" "${@:3}" && say "made" && plan "$WORK/$1.gguf" "$WORK/m.atsp" --vram "$2" --ctx $ctx || return 1
    rm -f "$WORK/$1.gguf"
    say "planned"
    watch_memory "$WORK/memory"
    generate "$WORK/m.atsp" "$WORK/log" --tokens-in "$WORK/prompt" -n "$n_tokens"
    local status=$? peak
    peak=$(peak_mib "$WORK/memory")
    [ $status -eq 0 ] && report "$1" "$2" "$peak"
}

heading
ids "$n_prompt" "${VOCAB:-100000}" "$WORK/prompt"
each_model "$@"
