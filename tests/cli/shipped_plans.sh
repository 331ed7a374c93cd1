#!/usr/bin/env bash
# The plans in plans/: whole, and those without weights completed by their model and run on the device that they were made for.
. "$(dirname "$0")/../support/cli.sh"

generate() { timeout 120 "$B/atsi-run" "$1" -p "Once upon a time" -n 24 --temp 0 --quiet "${@:2}"; }

# Completed with plans/demo.gguf, the plan gives the text of the whole plan, on the CPU and on the simulated card.
completes_and_runs() {
    local plan=$1 device=$2
    "$B/atsi-plan" "$plan" --attach plans/demo.gguf -o "$work/p.atsp" >"$work/log" 2>&1 || { cat "$work/log"; return 1; }
    "$B/atsi-plan" --verify "$work/p.atsp" >"$work/log" 2>&1 || { cat "$work/log"; return 1; }
    generate "$work/p.atsp" --device cpu >"$work/cpu" && generate "$work/p.atsp" --device "sim:$device" >"$work/sim" || return 1
    cmp "$work/whole" "$work/cpu" && cmp "$work/whole" "$work/sim"
}

generate plans/demo.atsp --device cpu >"$work/whole" || { not_ok "plans/demo.atsp runs"; finish; exit; }
check "plans/demo.atsp is whole" "$B/atsi-plan" --verify plans/demo.atsp
for plan in plans/demo.*.atsp; do
    name=${plan#plans/demo.}
    check "$plan completes and runs" completes_and_runs "$plan" "plans/${name%.atsp}.json"
done
finish
