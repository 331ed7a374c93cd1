#!/usr/bin/env bash
# The paper's ablation: what each part brings, prefill and decode, at one budget.
#   base   whole layers placed, the CPU waits for every copy, nothing moves, a unit is computed by one side
#   +TP    tensors placed one by one            +AC  copies and kernels overlap
#   +DT    weights move while the round runs    +2P  both processors on one unit: the program as it is
# Of models with experts all of an operation are placed together up to +DT; +2P places them as the program chooses, one by one where that
# pays, and +2U in between is both processors on units whose experts are together.
#   tests/bench/ablation.sh [SHAPE...]     default: qwen3-14b qwen3-30b-a3b gpt-oss-20b; VRAM=6G PROMPT=1024 TOKENS=128 RUNS=1 CHUNK=512
#   ROUTING=FILE   how often experts are chosen, for +2P (default none)     OUT=FOLDER   every run's log is left there
# Per step: rates (medians of RUNS, steps alternate), gain over the step before, predicted time a token and what share of it
# was measured, time over the floor (experts that were found on the card count as read there), the card's busy share and the link's GB/s in decode as recorded and by the driver's counters.
# STEPS="base +2P": only these. PREPARE=1: only models and plans are made, and kept; KEEP=1: plans that are there are used and kept. Settings that all scripts here share: tests/bench/common.sh.
set -uo pipefail
. "$(dirname "$0")/common.sh"
n_prompt=${PROMPT:-1024} n_tokens=${TOKENS:-128} ctx=${CTX:-4096} chunk=${CHUNK:-512}
[ $# -gt 0 ] || set -- qwen3-14b qwen3-30b-a3b gpt-oss-20b

# What the step of this name switches off, and which plan it runs.
switches() {
    case $1 in
    base | +TP) echo --no-async --policy none --no-split-rows ;;
    +AC) echo --policy none --no-split-rows ;;
    +DT) echo --no-split-rows ;;
    esac
}
moves_nothing() { case $1 in base | +TP | +AC) echo static ;; esac; }
has_experts() { [ "$(used_share "$1")" != 1/1 ]; } # SHAPE
# Where nothing moves the plan is one that reserves no room for what moves.
plan_of() { # SHAPE STEP
    case $2 in
    base) echo layer ;;
    +TP | +AC) echo tensor-static ;;
    +2P) if has_experts "$1"; then echo auto; else echo tensor; fi ;;
    *) echo tensor ;;
    esac
}
plan_options() { # PLAN
    case $1 in
    auto) echo --routing "${ROUTING:-none}" ;;
    *) echo --placement "$1" --experts unit --routing none ;;
    esac
}
choose_steps() { # SHAPE
    local step
    steps=()
    for step in base +TP +AC +DT +2U +2P; do
        if [ "$step" = +2U ] && ! has_experts "$1"; then continue; fi
        case " ${STEPS:-$step} " in *" $step "*) steps+=("$step") ;; esac
    done
}

# recorded LOG: "busy_% link_GB/s" of a decode round, as the run itself measured them.
recorded() {
    local line
    line=$(grep -E '^link .*GB/s' "$1") && sed -E 's/.*, ([0-9.]+) GB\/s; GPU busy ([0-9.]+) %.*/\2 \1/' <<<"$line" || echo "- -"
}

keep=${KEEP:-${PREPARE:-}}
plan_file() { echo "$WORK/$1.$(plan_of "$1" "$2").atsp"; } # SHAPE STEP

make_model() { # SHAPE
    # shellcheck disable=SC2086
    [ -s "$WORK/$1.gguf" ] || model "$1" ${MODEL_OPTIONS:-}
}

# The plan of a step, made when it is first asked for; those that no later run needs are deleted to make room.
make_plan() { # SHAPE STEP
    local file old
    file=$(plan_file "$1" "$2")
    for old in "$WORK"/*.atsp; do
        if [ -z "$keep" ] && [ "${RUNS:-1}" -eq 1 ] && [ "$old" != "$file" ]; then rm -f "$old"; fi
    done
    [ -s "$file" ] && return
    make_model "$1" || return 1
    # shellcheck disable=SC2046
    plan "$WORK/$1.gguf" "$file" --vram "${VRAM:-6G}" --ctx "$ctx" --chunk "$chunk" $(plan_options "$(plan_of "$1" "$2")")
}

# Model and plans of all steps; a planner is one thread that waits for memory most of the time, so they go beside each other.
prepare() { # SHAPE
    local step made=" " planner planners=()
    make_model "$1" || return 1
    for step in "${steps[@]}"; do
        case $made in *" $(plan_of "$1" "$step") "*) continue ;; esac
        made+="$(plan_of "$1" "$step") "
        make_plan "$1" "$step" &
        planners+=($!)
    done
    for planner in "${planners[@]}"; do wait "$planner" || return 1; done
    rm -f "$WORK/$1.gguf"
    say "$1: prepared"
}

# once SHAPE STEP ROUND: a run; figures are added to $WORK/STEP.*
once() {
    local step=$2 log=$WORK/$2.$3.log plan
    plan=$(plan_file "$1" "$step")
    watch_card "$WORK/card"
    # shellcheck disable=SC2046
    generate "$plan" "$log" --tokens-in "$WORK/prompt" -n "$n_tokens" $(switches "$step") || { card_over "$WORK/card" 1 >/dev/null; return 1; }
    card_over "$WORK/card" "$(sed -n 's/^decode *\([0-9.]*\) s.*/\1/p' "$log")" >"$WORK/$step.card"
    recorded "$log" >>"$WORK/$step.card"
    rate prefill "$log" >>"$WORK/$step.prefill"
    rate decode "$log" >>"$WORK/$step.decode"
    predicted_ms "$log" "$plan" "$(moves_nothing "$step")" >>"$WORK/$step.predicted"
    found "$log" >>"$WORK/$step.found"
    grep -E '^(resident|exchange|rounds|divided|link|tried|decided|speeds|a token)' "$log" >"$WORK/$step.said"
}

report() { # SHAPE
    local step before=0 decode prefill predicted ms on_card floor_ms busy link busy_recorded link_recorded
    for step in "${steps[@]}"; do
        [ -s "$WORK/$step.decode" ] || continue
        prefill=$(middle "$WORK/$step.prefill") decode=$(middle "$WORK/$step.decode") predicted=$(middle "$WORK/$step.predicted")
        on_card=0
        [ ! -s "$WORK/$step.found" ] || on_card=$(middle "$WORK/$step.found")
        read -r _ _ floor_ms < <(floor "$(plan_file "$1" "$step")" "$1" $((n_prompt + n_tokens / 2)) "$ctx" "$on_card")
        { read -r busy link; read -r busy_recorded link_recorded; } <"$WORK/$step.card"
        ms=$(awk -v d="$decode" 'BEGIN { printf "%.2f", 1000 / d }')
        printf '%-14s %-5s prefill %8.1f (planned %s)  decode %s tok/s = %s ms  gain %s  predicted %s ms (%s of measured)  floor %s ms, T/floor %s  card busy %s %% (driver %s), link %s GB/s (driver %s)\n' \
            "$1" "$step" "$prefill" "$(planned_prefill "$(plan_file "$1" "$step")" "$(moves_nothing "$step")")" "$(spread "$WORK/$step.decode")" "$ms" "$(ratio "$decode" "$before")" "$predicted" "$(ratio "$predicted" "$ms")" \
            "$floor_ms" "$(ratio "$ms" "$floor_ms")" "$busy_recorded" "$busy" "$link_recorded" "$link"
        before=$decode
    done
    [ ! -e "$WORK/${steps[-1]}.said" ] || sed 's/^/    /' "$WORK/${steps[-1]}.said"
}

heading
for shape; do
    time_is_left "$shape" || break
    choose_steps "$shape"
    if [ -n "${PREPARE:-}" ]; then
        prepare "$shape" || exit 1
        continue
    fi
    ids "$n_prompt" "${VOCAB:-100000}" "$WORK/prompt"
    rm -f "$WORK"/*.{prefill,decode,predicted,found,card,said}
    for ((run = 0; run < ${RUNS:-1}; run++)); do
        for step in "${steps[@]}"; do time_is_left "$shape $step" && make_plan "$shape" "$step" && once "$shape" "$step" "$run"; done
    done
    plan=$(plan_file "$shape" "${steps[-1]}")
    say "$shape: $(planned_mib "$plan" resident) MiB resident and $(planned_mib "$plan" experts) of experts one by one, $(planned_mib "$plan" temporary) temporary"
    report "$shape"
    [ -z "${OUT:-}" ] || { mkdir -p "$OUT/$shape" && cp "$WORK"/*.log "$OUT/$shape"; }
    [ -n "$keep" ] || rm -f "$WORK/$shape".* "$WORK"/*.log
done
