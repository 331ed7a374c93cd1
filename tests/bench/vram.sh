#!/usr/bin/env bash
# Is --vram kept, and used? Peak memory of the process as the driver counts it, for budgets and contexts.
#   tests/bench/vram.sh            BUDGETS="1 2 4" (GiB)   CONTEXTS="4096 32768"   SHAPE=qwen3-14b
# A prompt longer than a chunk and a few decoded tokens, so that every buffer is in use. The next plan is made while this one runs.
# Settings that all scripts here share: tests/bench/common.sh.
set -uo pipefail
. "$(dirname "$0")/common.sh"
shape=${SHAPE:-qwen3-14b}
n_bad=0

heading
model "$shape" || exit 1
ids 520 "${VOCAB:-100000}" "$WORK/prompt"
points=()
for ctx in ${CONTEXTS:-4096 32768}; do
    for budget in ${BUDGETS:-1 2 4 6 8 12 16 24}; do points+=("$budget:$ctx"); done
done

make_plan() { plan "$WORK/$shape.gguf" "$WORK/$1.atsp" --vram "${1%:*}G" --ctx "${1#*:}"; }

# report POINT PEAK: kept means at most the budget; used means 90 % of it, or everything is on the card.
report() {
    local log=$WORK/$1.log2
    awk -v budget="$((1024 * ${1%:*}))" -v peak="$2" -v ctx="${1#*:}" -v host="$(mib_on CPU "$log")" -v gpu="$(mib_on GPU "$log")" \
        -v prefill="$(rate prefill "$log")" -v decode="$(rate decode "$log")" -v planned="$(planned_mib "$WORK/$1.atsp" resident)" '
        BEGIN {
            share = 100 * peak / budget
            verdict = peak == 0 ? "ok, nothing counts memory here" : peak > budget ? "OVER" : share >= 90 ? "ok" : host < gpu / 50 ? "ok, nothing is left to place" : "UNDERUSED"
            printf "%6d MiB  ctx %5d  peak %6d MiB  %5.1f %%  on the card %7.0f MiB (planned %5d), on the host %7.0f  prefill %7.1f  decode %6.2f tok/s  %s\n",
                budget, ctx, peak, share, gpu, planned, host, prefill, decode, verdict
            exit verdict !~ /^ok/
        }'
}

make_plan "${points[0]}" || exit 1
for ((i = 0; i < ${#points[@]}; i++)); do
    point=${points[i]}
    time_is_left "${points[*]:i}" || break
    if [ $((i + 1)) -lt ${#points[@]} ]; then make_plan "${points[i + 1]}" & fi
    watch_memory "$WORK/memory"
    generate "$WORK/$point.atsp" "$WORK/$point.log2" --tokens-in "$WORK/prompt" -n 4 || n_bad=$((n_bad + 1))
    report "$point" "$(peak_mib "$WORK/memory")" || n_bad=$((n_bad + 1))
    rm -f "$WORK/$point.atsp"
    wait
done
say "$n_bad points are not as promised"
[ $n_bad -eq 0 ]
