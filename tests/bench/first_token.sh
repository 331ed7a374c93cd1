#!/usr/bin/env bash
# What starting costs: seconds from exec to the first token on standard output, less what the prefill took, with the plan in the page
# cache. The medians of RUNS runs of each plan:
#   raw     the model as planned                 shipped  made with --ship and unpacked by an earlier run
#   vocab   with the vocabulary of VOCAB_GGUF, where one is given, and the prompt as text
#   B=build THREADS=2 RUNS=5 VOCAB_GGUF=vocab.gguf tests/bench/first_token.sh ["SHAPE SYNTH_OPTIONS..."...]
set -uo pipefail
export DEVICE=${DEVICE:-cpu}
. "$(dirname "$0")/common.sh"
threads=${THREADS:-$(nproc)} runs=${RUNS:-5} ctx=${CTX:-1024}
[ $# -gt 0 ] || set -- "qwen3-1.7b --recipe q4_k_m" "qwen3-1.7b --recipe f16"

# start_once PLAN OPTIONS...: "until_first_token prefill" in ms
start_once() {
    local began=$EPOCHREALTIME first ended
    exec 3< <(exec timeout -k 5 "${RUN_SECONDS:-90}" "$B/atsi-run" "$1" --device "$DEVICE" --threads "$threads" -n 1 --temp 0 \
        --ignore-eos --print-ids --stats "${@:2}" 2>"$WORK/start.log")
    read -r -N 1 first <&3
    ended=$EPOCHREALTIME
    cat <&3 >/dev/null
    exec 3<&-
    [ -n "${first:-}" ] || { echo "atsi-run ${1##*/}: no token: $(tail -n 1 "$WORK/start.log")" >&2; return 1; }
    sed -n 's/^prefill *\([0-9.]*\) s.*/\1/p' "$WORK/start.log" |
        awk -v from="${began/,/.}" -v to="${ended/,/.}" '{ printf "%.0f %.0f\n", 1000 * (to - from), 1000 * $1 }'
}

measure() { # NAME PLAN OPTIONS...
    local run
    start_once "${@:2}" >/dev/null || return 1 # the plan into the page cache, a shipped one unpacked
    for ((run = 0; run < runs; run++)); do start_once "${@:2}" || return 1; done >"$WORK/times"
    awk '{ print $1 - $2, $1, $2 }' "$WORK/times" | sort -g | awk -v name="$1" '
        { start[NR] = $1; all[NR] = $2; prefill[NR] = $3 }
        END {
            m = int((NR + 1) / 2)
            printf "%-44s start %4d ms (%d-%d, %d runs); its run: %d to the first token, %d of them prefill\n",
                name, start[m], start[1], start[NR], NR, all[m], prefill[m]
        }'
}

make_plan() { "$B/atsi-plan" "$WORK/$1.gguf" -o "$WORK/$2" --vram 0 --ctx "$ctx" --quiet "${@:3}"; }

one() { # SHAPE SYNTH_OPTIONS...
    model "$@" && make_plan "$1" raw.atsp && make_plan "$1" shipped.atsp --ship || return 1
    rm -f "$WORK/$1.gguf"
    measure "raw, $*" "$WORK/raw.atsp" --tokens-in "$WORK/ids" && measure "shipped, $*" "$WORK/shipped.atsp" --tokens-in "$WORK/ids" ||
        return 1
    rm -f "$WORK"/*.atsp
    [ -n "${VOCAB_GGUF:-}" ] || return 0
    model "$@" --vocab "$VOCAB_GGUF" && make_plan "$1" vocab.atsp || return 1
    rm -f "$WORK/$1.gguf"
    measure "vocab, $*" "$WORK/vocab.atsp" -p "The first words of a text that somebody has just begun" || return 1
    rm -f "$WORK"/*.atsp
}

heading
ids 16 "${VOCAB:-100000}" "$WORK/ids"
each_model "$@"
