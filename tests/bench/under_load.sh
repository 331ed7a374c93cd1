#!/usr/bin/env bash
# Time per token while the load on the machine changes: none, 60 % of every processor, 60 % of card and link, none again; where
# nothing reacts to it (fixed), where the CPU's threads do and the assignment stays (static), and with the program as it is. Runs alternate.
#   tests/bench/under_load.sh     PHASE_SECONDS=5 RUNS=2 SHAPE=qwen3-14b VRAM=6G POLICIES="fixed static load-aware"
#                                 STATIC="options of the schedule that stays"
#                                 CPU_LOAD="--cpu 60" CARD_LOAD="--gpu 60 --pcie 60" (without a card: "--memory 1")
#                                 OUT: where the figures, under_load.svg and the decisions of each run go (default: B)
# Goal: the rise at least 13 % smaller under CPU load and 38 % under card and link (the paper's Figure 13).
# Settings that all scripts here share: tests/bench/common.sh.
set -uo pipefail
. "$(dirname "$0")/common.sh"
shape=${SHAPE:-qwen3-14b} out=${OUT:-$B} seconds=${PHASE_SECONDS:-5}
csv=$out/under_load.csv
card_load=${CARD_LOAD:---gpu 60 --pcie 60}
phases="$seconds:no load:;$seconds:CPU 60 %:${CPU_LOAD:---cpu 60};$seconds:card + link 60 %:$card_load;$seconds:no load again:"
# The schedule that stays is decided and tuned while nothing else runs; then the time to decide again never comes. (--no-reschedule
# would not even tune it: what the profile says is best stays.)
read -ra static <<<"${STATIC:---reschedule-interval 1000000}"

heading
mkdir -p "$out"
model "$shape" || exit 1
ids 64 "${VOCAB:-100000}" "$WORK/prompt"
plan "$WORK/$shape.gguf" "$WORK/m.atsp" --vram "${VRAM:-6G}" --ctx 4096 || exit 1
rm -f "$WORK/$shape.gguf" "$csv" "$out"/decisions.*.csv

# The decisions of a run that were taken over, in seconds of the clock that says when phases began: for which use and speeds, how many
# units, promised ms and what was at work promised at those speeds, what it took; how many were declined in between.
show_decisions() {
    awk -F, 'NR > 1 && $2 == "declined" { declined++; next }
        NR > 1 && ++shown <= 60 {
            printf "    %.1f %s %s %.2f %.2f %.2f +%d (%.2f %.2f %.2f +%d) %d+%d forecast %.1f/%.1f, before %.1f ms (%d rounds, %d declined): %s\n",
                $1, $2, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, declined, $3
            declined = 0 }' "$1"
}

once() { # RUN POLICY OPTIONS...
    time_is_left "$1 $2" || return 1
    say "run $1, $2: ${*:3}"
    timeout -k 5 $((4 * (${seconds%.*} + 1) + ${START_SECONDS:-30})) python3 "$here/timeline.py" "$csv" "$1" "$2" "$phases" "$B/tools/load" "$B/atsi-run" \
        "$WORK/m.atsp" --device "$DEVICE" --temp 0 --ignore-eos --print-ids --stats --tokens-in "$WORK/prompt" -n 4000 \
        --decisions "$out/decisions.$2.$1.csv" "${@:3}" 2>"$WORK/log"
    local status=$?
    grep -E '^(decode|rounds|link|tried|decided|speeds|a token|Traceback|.*Error|.*does not start|the generation ended)' "$WORK/log" | sed 's/^/    /'
    return $status
}
read -ra policies <<<"${POLICIES:-fixed static load-aware}"
options_of() {
    case $1 in
    fixed) echo "${static[@]}" --no-repeats ;;
    static) echo "${static[@]}" ;;
    esac
}
for ((run = 0; run < ${RUNS:-2}; run++)); do
    for policy in "${policies[@]}"; do
        # shellcheck disable=SC2046
        once "$run" "$policy" $(options_of "$policy") || break 2
    done
done
[ -s "$csv" ] || { say "no run came to its end"; exit 1; }
python3 "$here/plot_timeline.py" "$csv" "$out/under_load.svg" "${policies[@]}"
status=$?
for decisions in "$out"/decisions.*.csv; do
    echo "${decisions##*/}"
    show_decisions "$decisions"
done
exit $status
