#!/usr/bin/env bash
# Is --vram kept, and used? Peak memory of the process as the driver counts it, for budgets and contexts.
#   tests/bench/vram.sh            BUDGETS="1 2 4" (GiB)   CONTEXTS="4096 32768"   SHAPE=qwen3-14b   POINTS="12:32768 6:32768"
# A prompt longer than a chunk and a few decoded tokens, so that every buffer is in use; long contexts, whose cache may be on the
# host, take a shorter one. Plans are made while others run, so rates are no figures. 16 points take about 100 s.
# Settings that all scripts here share: tests/bench/common.sh.
set -uo pipefail
. "$(dirname "$0")/common.sh"
shape=${SHAPE:-qwen3-14b}
n_bad=0

heading
model "$shape" || exit 1
ids 520 "${VOCAB:-100000}" "$WORK/prompt"
ids 64 "${VOCAB:-100000}" "$WORK/short"
n_plans=${PLANS:-2} # made or waiting at a time, beside the one that runs
read -ra points <<<"${POINTS:-}"
[ ${#points[@]} -gt 0 ] || for budget in ${BUDGETS:-6 8 16 24 1 2 4 12}; do
    for ctx in ${CONTEXTS:-4096 32768}; do points+=("$budget:$ctx"); done
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

one() { # POINT
    local prompt=$WORK/prompt n_tokens=24
    if [ "${1#*:}" -gt 8192 ]; then prompt=$WORK/short n_tokens=4; fi
    watch_memory "$WORK/memory"
    generate "$WORK/$1.atsp" "$WORK/$1.log2" --tokens-in "$prompt" -n $n_tokens
    local status=$? peak
    peak=$(peak_mib "$WORK/memory")
    if [ $status -eq 0 ] && report "$1" "$peak"; then return; fi
    n_bad=$((n_bad + 1))
}

planners=()
start_plan() { # INDEX
    if [ "$1" -lt ${#points[@]} ]; then make_plan "${points[$1]}" & planners[$1]=$!; fi
}
for ((i = 0; i < n_plans; i++)); do start_plan $i; done
for ((i = 0; i < ${#points[@]}; i++)); do
    wait "${planners[i]}" || { n_bad=$((n_bad + 1)); start_plan $((i + n_plans)); continue; }
    time_is_left "${points[*]:i}" || break
    start_plan $((i + n_plans))
    one "${points[i]}"
    rm -f "$WORK/${points[i]}.atsp"
done
# shellcheck disable=SC2046
kill $(jobs -p) 2>/dev/null
wait
say "$n_bad points are not as promised"
[ $n_bad -eq 0 ]
