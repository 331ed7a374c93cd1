#!/usr/bin/env bash
# The paper's ablation: what each part brings, prefill and decode, at one budget.
#   base   whole layers placed, the CPU waits for every copy, nothing moves, a unit is computed by one side
#   +TP    tensors placed one by one            +AC  copies and kernels overlap
#   +DT    weights move while the round runs    +2P  both processors on one unit: the program as it is
#   tests/bench/ablation.sh [SHAPE...]     default: qwen3-14b qwen3-30b-a3b gpt-oss-20b; VRAM=6G PROMPT=1024 TOKENS=128 RUNS=1
# Per step: rates (medians of RUNS, steps alternate), gain over the step before, predicted time a token and what share of it
# was measured, time over the floor, the card's busy share and the link's GB/s in decode as recorded and by the driver's counters.
# Steps whose switches this build lacks are left out. Settings that all scripts here share: tests/bench/common.sh.
set -uo pipefail
. "$(dirname "$0")/common.sh"
n_prompt=${PROMPT:-1024} n_tokens=${TOKENS:-128} ctx=${CTX:-4096}
[ $# -gt 0 ] || set -- qwen3-14b qwen3-30b-a3b gpt-oss-20b

has() { "$B/$1" --help 2>&1 | grep -q -- "$2"; }

# What the step of this name switches off, and which plan it runs.
switches() {
    case $1 in
    base | +TP) echo --no-async --policy none --no-split-rows ;;
    +AC) echo --policy none --no-split-rows ;;
    +DT) echo --no-split-rows ;;
    esac
}
moves_nothing() { case $1 in base | +TP | +AC) echo static ;; esac; }
plan_of() { if [ "$1" = base ]; then echo layer; else echo tensor; fi; }
steps=()
for step in base +TP +AC +DT +2P; do
    if [ $step = base ] && ! has atsi-plan --placement; then continue; fi
    if [[ $step == base || $step == +TP ]] && ! has atsi-run --no-async; then continue; fi
    if [[ $step == +AC || $step == +DT ]] && ! has atsi-run --no-split-rows; then continue; fi
    steps+=("$step")
done

# recorded LOG: "busy_% link_GB/s" of a decode round, as the run itself measured them.
recorded() {
    local line
    line=$(grep -E '^link .*GB/s' "$1") && sed -E 's/.*, ([0-9.]+) GB\/s; GPU busy ([0-9.]+) %.*/\2 \1/' <<<"$line" || echo "- -"
}

# once STEP ROUND: a run; figures are added to $WORK/STEP.*
once() {
    local step=$1 log=$WORK/$1.$2.log
    watch_card "$WORK/card"
    # shellcheck disable=SC2046
    generate "$WORK/$(plan_of "$step").atsp" "$log" --tokens-in "$WORK/prompt" -n "$n_tokens" $(switches "$step") || { card_over "$WORK/card" 1 >/dev/null; return 1; }
    card_over "$WORK/card" "$(sed -n 's/^decode *\([0-9.]*\) s.*/\1/p' "$log")" >"$WORK/$step.card"
    recorded "$log" >>"$WORK/$step.card"
    rate prefill "$log" >>"$WORK/$step.prefill"
    rate decode "$log" >>"$WORK/$step.decode"
    predicted_ms "$log" "$WORK/$(plan_of "$step").atsp" "$(moves_nothing "$step")" >>"$WORK/$step.predicted"
    grep -E '^(rounds|link|tried|decided|speeds|a token)' "$log" >"$WORK/$step.said"
}

report() { # SHAPE
    local step before=0 decode prefill predicted ms floor_ms busy link busy_recorded link_recorded
    for step in "${steps[@]}"; do
        [ -s "$WORK/$step.decode" ] || continue
        # shellcheck disable=SC2046
        prefill=$(median $(cat "$WORK/$step.prefill")) decode=$(median $(cat "$WORK/$step.decode"))
        # shellcheck disable=SC2046
        predicted=$(median $(cat "$WORK/$step.predicted"))
        read -r _ _ floor_ms < <(floor "$WORK/$(plan_of "$step").atsp" "$1" $((n_prompt + n_tokens / 2)) "$ctx")
        { read -r busy link; read -r busy_recorded link_recorded; } <"$WORK/$step.card"
        ms=$(awk -v d="$decode" 'BEGIN { printf "%.2f", 1000 / d }')
        printf '%-14s %-5s prefill %8.1f (planned %s)  decode %7.2f tok/s = %6.2f ms  gain %s  predicted %s ms (%s of measured)  floor %s ms, T/floor %s  card busy %s %% (driver %s), link %s GB/s (driver %s)\n' \
            "$1" "$step" "$prefill" "$(planned_prefill "$WORK/$(plan_of "$step").atsp" "$(moves_nothing "$step")")" "$decode" "$ms" "$(ratio "$decode" "$before")" "$predicted" "$(ratio "$predicted" "$ms")" \
            "$floor_ms" "$(ratio "$ms" "$floor_ms")" "$busy_recorded" "$busy" "$link_recorded" "$link"
        before=$decode
    done
    sed 's/^/    /' "$WORK/${steps[-1]}.said"
}

heading
for shape; do
    time_is_left "$shape" || break
    # shellcheck disable=SC2086
    model "$shape" ${MODEL_OPTIONS:-} || exit 1
    ids "$n_prompt" "${VOCAB:-100000}" "$WORK/prompt"
    plan "$WORK/$shape.gguf" "$WORK/tensor.atsp" --vram "${VRAM:-6G}" --ctx "$ctx" || exit 1
    if [ "${steps[0]}" = base ]; then plan "$WORK/$shape.gguf" "$WORK/layer.atsp" --vram "${VRAM:-6G}" --ctx "$ctx" --placement layer || exit 1; fi
    rm -f "$WORK/$shape.gguf" "$WORK"/*.{prefill,decode,predicted,card,said}
    say "$shape planned: $(planned_mib "$WORK/tensor.atsp" resident) MiB resident, $(planned_mib "$WORK/tensor.atsp" temporary) temporary"
    for ((run = 0; run < ${RUNS:-1}; run++)); do
        for step in "${steps[@]}"; do time_is_left "$shape $step" && once "$step" "$run"; done
    done
    report "$shape"
    rm -f "$WORK"/*.atsp
done
