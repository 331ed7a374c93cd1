#!/usr/bin/env bash
# Experts placed by unit, one by one by what a run has counted, as the planner chooses without statistics, and another program: runs in
# turn on the same file. Per way: rates with their spread, how many of a token's experts were found on the card and how many were
# expected, the time that was predicted for a token and what share of the measured one it is, and the measured one over the floor.
#   [PEER="COMMAND"] tests/bench/experts.sh ["SHAPE RUNS SYNTH_OPTIONS..."...]     default: "gpt-oss-20b 5" "qwen3-30b-a3b 5"
#   WAYS="counted peer unit auto"   in this order; also `single`, one by one without statistics, `few`, that without
#   large exchanges, and `still`, counted without any exchange
#   VRAM=6G CTX=4096 PROMPT=2048 TOKENS=128 THREADS=16   what is measured; COUNT_PROMPT=1024 COUNT_TOKENS=256 what is counted, another prompt
#   LONG=1200   one more run of so many tokens of each plan without statistics: what exchanging makes of it
#   OUT=FOLDER  every log and the counts are left there; TRACE=40: and a trace of so many tokens of the counted plan
# PEER is called as by tests/bench/pair.sh; ours counts from the first token on. PREPARE=1: only models, counts and plans are made, and kept;
# KEEP=1: what is there is used and kept. Settings that all scripts here share: tests/bench/common.sh.
set -uo pipefail
. "$(dirname "$0")/common.sh"
n_prompt=${PROMPT:-2048} n_tokens=${TOKENS:-128} threads=${THREADS:-$(nproc)} ctx=${CTX:-4096}
ways=${WAYS:-counted peer unit auto}
keep=${KEEP:-${PREPARE:-}}
export XDG_CACHE_HOME=$WORK/cache # what runs count by the way is found by no plan of another way
[ $# -gt 0 ] || set -- "gpt-oss-20b 5" "qwen3-30b-a3b 5"

plan_of() { case $1 in still) echo counted ;; few) echo single ;; *) echo "$1" ;; esac; }
plan_options() {
    case $1 in
    unit) echo --experts unit --routing none ;;
    single) echo --experts single --routing none ;;
    auto) echo --routing none ;;
    counted) echo --routing "$shape.routing.json" ;;
    esac
}
run_options() { case $1 in still) echo --no-exchange ;; few) echo --no-large-exchange ;; esac; }

make_plan() { # WAY
    [ -s "$shape.$1.atsp" ] && return
    # shellcheck disable=SC2046
    plan "$shape.gguf" "$shape.$1.atsp" --vram "${VRAM:-6G}" --ctx "$ctx" --threads "$threads" $(plan_options "$1")
}

# What the plan by unit is asked for on the way: how often each expert is chosen.
count() {
    [ -s "$shape.routing.json" ] && return
    generate "$shape.unit.atsp" "$shape.count.log" --threads "$threads" --tokens-in "$WORK/counting" -n "${COUNT_TOKENS:-256}" \
        --save-routing "$shape.routing.json" && grep '^experts .* chosen' "$shape.count.log"
}

wants() { # WAY...: whether one of them is asked for
    local way
    for way; do
        case " $ways " in *" $way "*) return ;; esac
    done
    return 1
}

prepare() { # SYNTH_OPTIONS...
    local planner planners=()
    if [ ! -s "$shape.gguf" ]; then model "${shape##*/}" "$@" || return 1; fi
    make_plan unit || return 1
    if wants auto; then make_plan auto & planners+=($!); fi
    if wants single few; then make_plan single & planners+=($!); fi
    count || return 1
    if wants counted still; then make_plan counted || return 1; fi
    for planner in "${planners[@]}"; do wait "$planner" || return 1; done
    say "${shape##*/}: prepared"
}

# note WAY LOG: figures of a run are added to $shape.WAY.*
note() {
    rate prefill "$2" >>"$shape.$1.prefill"
    rate decode "$2" >>"$shape.$1.decode"
    predicted_ms "$2" "$shape.$(plan_of "$1").atsp" >>"$shape.$1.predicted"
    sed -n 's/^a token .* measured \([0-9.]*\) ms.*/\1/p' "$2" >>"$shape.$1.measured"
    sed -n 's/^resident .* of those chosen \([0-9.]*\) %.*/\1/p' "$2" >>"$shape.$1.found"
    sed -n 's/^resident .* \([0-9.]*\) % were expected.*/\1/p' "$2" >>"$shape.$1.expected"
    found "$2" >>"$shape.$1.lately"
    sed -n 's/^link *\([0-9.]*\) MiB a token.*/\1/p' "$2" >>"$shape.$1.link"
}

once() { # WAY ROUND
    local log=$shape.$1.$2.log
    if [ "$1" = peer ]; then
        run_peer "$shape.gguf" "$threads" "$n_prompt" "$n_tokens" "$n_prompt"
        return
    fi
    # shellcheck disable=SC2046
    generate "$shape.$(plan_of "$1").atsp" "$log" --threads "$threads" --tokens-in "$WORK/prompt" -n $((n_tokens + 1)) $(run_options "$1") &&
        note "$1" "$log"
}

report_peer() {
    [ -s "$WORK/peer.decode" ] || return 0
    printf '%-14s %-8s prefill %s  decode %s  %s\n' "${shape##*/}" peer "$(spread "$WORK/peer.prefill")" "$(spread "$WORK/peer.decode")" \
        "$(grep -vE '^(prefill|decode) ' "$WORK/peer.log" | tr '\n' ' ')"
}

report() { # WAY
    local of=$shape.$1 decode found expected predicted ms lately=0 floor_ms
    [ -s "$of.decode" ] || return 0
    decode=$(middle "$of.decode") ms=$(middle "$of.measured") predicted=$(middle "$of.predicted")
    found=$(middle "$of.found") expected=$(middle "$of.expected")
    [ ! -s "$of.lately" ] || lately=$(middle "$of.lately")
    read -r _ _ floor_ms < <(floor "$shape.$(plan_of "$1").atsp" "${shape##*/}" $((n_prompt + n_tokens / 2)) "$ctx" "$lately")
    printf '%-14s %-8s prefill %s  decode %s  of the peer %s %s, of unit %s  found %s %% (expected %s)  predicted %s ms, %s of measured %s  floor %s ms, T/floor %s  link %s MiB a token  %s\n' \
        "${shape##*/}" "$1" "$(spread "$of.prefill")" "$(spread "$of.decode")" \
        "$(ratio "$(middle "$of.prefill")" "$(middle "$WORK/peer.prefill")")" "$(ratio "$decode" "$(middle "$WORK/peer.decode")")" \
        "$(ratio "$decode" "$(middle "$shape.unit.decode")")" "${found:--}" "${expected:--}" "$predicted" "$(ratio "$predicted" "$ms")" "$ms" \
        "$floor_ms" "$(ratio "$ms" "$floor_ms")" \
        "$(middle "$of.link")" "$(grep -o 'resident [0-9]* of .* MiB;' "$shape.$1.0.log" | head -n 1)"
}

# One run of many tokens of each plan that was made without statistics.
long_runs() {
    local way
    for way in auto single; do
        [ -s "$shape.$way.atsp" ] || continue
        generate "$shape.$way.atsp" "$shape.$way.long.log" --threads "$threads" --tokens-in "$WORK/counting" -n "$LONG" || return 1
        say "${shape##*/}: $way, $LONG tokens: decode $(rate decode "$shape.$way.long.log") tok/s"
        grep -E '^(a token|resident|exchange|decided)' "$shape.$way.long.log" | sed 's/^/    /'
    done
}

leave() {
    mkdir -p "$OUT" && cp "$shape".*.log "$shape.routing.json" "$OUT" || return 1
    [ -n "${TRACE:-}" ] || return 0
    generate "$shape.counted.atsp" "$shape.trace.log" --threads "$threads" --tokens-in "$WORK/prompt" -n "$TRACE" \
        --trace "$shape.trace.json" && gzip -c "$shape.trace.json" >"$OUT/${shape##*/}.trace.json.gz"
}

measure() { # RUNS
    local run way
    touch "$WORK"/peer.{prefill,decode} "$shape.unit.decode"
    for ((run = 0; run < $1; run++)); do
        for way in $ways; do
            if [ $run -gt 0 ] && ! time_is_left "${shape##*/} $way, run $run"; then break 2; fi
            once "$way" $run || return 1
        done
    done
    report_peer
    for way in $ways; do report "$way"; done
    if [ -n "${LONG:-}" ] && time_is_left "the long runs"; then long_runs || return 1; fi
    if [ -n "${OUT:-}" ]; then leave || return 1; fi
}

one() { # SHAPE RUNS SYNTH_OPTIONS...
    shape=$WORK/$1
    rm -f "$WORK"/peer.{prefill,decode} "$shape".*.{prefill,decode,predicted,measured,found,expected,lately,link}
    prepare "${@:3}" || return 1
    [ -n "${PREPARE:-}" ] || measure "$2"
    local status=$?
    [ -n "$keep" ] || rm -f "$shape".*
    return $status
}

heading
ids "$n_prompt" "${VOCAB:-100000}" "$WORK/prompt" 99
ids "${COUNT_PROMPT:-1024}" "${VOCAB:-100000}" "$WORK/counting"
each_model "$@"
