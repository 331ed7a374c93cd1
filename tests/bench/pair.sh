#!/usr/bin/env bash
# This program beside another one on the same files, runs in turn: by default the CPU alone, prefill of 512 tokens, decode of 64
# after 64.
#   PEER="COMMAND" tests/bench/pair.sh ["SHAPE RUNS SYNTH_OPTIONS..."...]
#   THREADS=16 PREFILL=512 TOKENS=64 DEPTH=64 CTX=1024 OPTIONS="of atsi-run"; with a card: DEVICE=cuda VRAM=6G
#   LOAD="--cpu 60": both beside tools/load with these options
# COMMAND gets MODEL.gguf THREADS N_PREFILL N_DECODE DEPTH behind it and prints `prefill X` and `decode Y` in tokens a second. With
# llama.cpp's own bench, for example, a script with the lines
#   llama-bench -m "$1" -t "$2" -ngl 0 -r 1 -p "$3" -n 0 -o jsonl | jq -r '"prefill \(.avg_ts)"'
#   llama-bench -m "$1" -t "$2" -ngl 0 -r 1 -p 0 -n "$4" -d "$5" -o jsonl | jq -r '"decode \(.avg_ts)"'
# Without PEER only this program runs. Medians, spreads, the ratio, and on the CPU what decode reads against the memory's read
# bandwidth measured in the same run by bench_matmul. Settings that all scripts here share: tests/bench/common.sh.
set -uo pipefail
export DEVICE=${DEVICE:-cpu}
. "$(dirname "$0")/common.sh"
threads=${THREADS:-$(nproc)} n_prefill=${PREFILL:-512} n_decode=${TOKENS:-64} depth=${DEPTH:-64} ctx=${CTX:-1024}
[ $# -gt 0 ] || set -- "qwen3-1.7b 5 --recipe q4_k_m" "qwen3-14b 3 --recipe q4_k_m" "gpt-oss-20b 5 --layers 6" \
    "qwen3-1.7b 5 --recipe iq4_xs" "qwen3-1.7b 5 --recipe q8_0" "qwen3-1.7b 5 --recipe f16"

# The best of what bench_matmul reads before and after its kernel, GB/s.
read_bandwidth() {
    [ "$DEVICE" = cpu ] || return 0
    [ -x "$B/bench/bench_matmul" ] || { echo 0; return; }
    timeout 30 "$B/bench/bench_matmul" --types Q8_0 --threads "$threads" --runs 2 --cold 1024 2>/dev/null |
        sed -n 's/.*read[^0-9]*\([0-9.]*\) GB\/s.*/\1/p' | sort -g | tail -n 1
}

# What one token reads, in GB: the whole of every matrix, of experts those used.
read_a_token() {
    "$B/atsi-plan" "$WORK/$1.gguf" --device "$here/../../plans/h200-xeon-16.json" --vram 8G --ctx "$ctx" --explain --json 2>/dev/null |
        python3 "$here/floor.py" $((depth + n_decode / 2)) "$ctx" "$(used_share "$1")" 1 1 1 | awk '{ print $1 + $2 }'
}

ours() {
    local options=(--threads "$threads")
    # shellcheck disable=SC2206
    options+=(${OPTIONS:-})
    generate "$WORK/m.atsp" "$WORK/decode.log" "${options[@]}" --tokens-in "$WORK/short" -n $((n_decode + 1)) || return 1
    rate decode "$WORK/decode.log" >>"$WORK/ours.decode"
    if [ "$depth" -ne "$n_prefill" ]; then
        generate "$WORK/m.atsp" "$WORK/prefill.log" "${options[@]}" --tokens-in "$WORK/long" -n 1 || return 1
    else
        cp "$WORK/decode.log" "$WORK/prefill.log"
    fi
    rate prefill "$WORK/prefill.log" >>"$WORK/ours.prefill"
}

report() { # NAME GB_A_TOKEN
    local phase
    for phase in prefill decode; do
        touch "$WORK/ours.$phase" "$WORK/peer.$phase"
        printf '%-34s %-8s ours %s  peer %s  ratio %s\n' "$1" $phase "$(spread "$WORK/ours.$phase")" "$(spread "$WORK/peer.$phase")" \
            "$(ratio "$(middle "$WORK/ours.$phase")" "$(middle "$WORK/peer.$phase")")"
    done
    [ "$DEVICE" = cpu ] || return 0
    awk -v name="$1" -v d="$(middle "$WORK/ours.decode")" -v gb="$2" -v top="$bandwidth" \
        'BEGIN { printf "%-34s %-8s reads %.3f GB a token: %.1f of %.1f GB/s%s\n", name, "", gb, d * gb, top, (top > 0 ? sprintf(", %.0f %%", 100 * d * gb / top) : "") }'
}

make_plan() { # GGUF
    if [ "$DEVICE" = cpu ]; then
        "$B/atsi-plan" "$1" -o "$WORK/m.atsp" --vram 0 --ctx "$ctx" --chunk "$n_prefill" --quiet
    else
        plan "$1" "$WORK/m.atsp" --vram "${VRAM:-6G}" --ctx "$ctx"
    fi
}

load=
start_load() {
    [ -n "${LOAD:-}" ] || return 0
    # shellcheck disable=SC2086
    "$B/tools/load" $LOAD >"$WORK/load.log" 2>&1 &
    load=$!
    local i
    for ((i = 0; i < 100; i++)); do
        ! grep -q '^on' "$WORK/load.log" || return 0
        sleep 0.1
    done
    echo "load $LOAD: does not start: $(tail -n 1 "$WORK/load.log")"
    return 1
}
end_load() {
    [ -n "$load" ] || return 0
    kill "$load" 2>/dev/null
    wait "$load"
    load=
    say "$(tail -n 1 "$WORK/load.log")"
}

one() { # SHAPE RUNS SYNTH_OPTIONS...
    local run name="$1 ${*:3}"
    rm -f "$WORK"/{ours,peer}.{prefill,decode}
    model "$1" "${@:3}" && make_plan "$WORK/$1.gguf" || return 1
    start_load || return 1
    for ((run = 0; run < $2; run++)); do
        if [ $run -gt 0 ] && ! time_is_left "$name, run $run"; then break; fi
        ours && run_peer "$WORK/$1.gguf" "$threads" "$n_prefill" "$n_decode" "$depth" || return 1
    done
    end_load
    report "$name" "$(read_a_token "$1")"
    rm -f "$WORK"/*.gguf "$WORK"/m.atsp*
}

trap 'end_load; [ -n "${KEEP:-}" ] || rm -rf "$WORK"' EXIT
heading
ids "$n_prefill" "${VOCAB:-100000}" "$WORK/long"
ids "$depth" "${VOCAB:-100000}" "$WORK/short"
bandwidth=$(read_bandwidth)
[ -z "$bandwidth" ] || say "$threads threads read $bandwidth GB/s"
each_model "$@"
status=$?
bandwidth=$(read_bandwidth)
[ -z "$bandwidth" ] || say "at the end $threads threads read $bandwidth GB/s"
[ $status -eq 0 ]
