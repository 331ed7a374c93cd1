#!/usr/bin/env bash
# tests/gpu/models.sh, which else runs on machines with a card, on the simulated one: it sees what it is for, and tells what is wrong.
. "$(dirname "$0")/../support/cli.sh"
export B MODELS_DEVICE=sim:plans/h200-xeon-16.json MODELS_TYPES=f32 MODELS_FAMILIES=qwen3-1.7b ATSI_SOAK_RUNS=2

models() { tests/gpu/models.sh "$@" >"$work/out" 2>&1; }
sees() { # sees WORDS CHECK: it passes and prints a line with the words (a regular expression)
    models "$2" && grep -qE -- "$1" "$work/out" && return
    cat "$work/out"
    return 1
}
tells() { # tells WORDS PROGRAM: it fails where the device's runs go through this program of the shell
    printf '#!/bin/bash\n%s\n' "$2" >"$work/under" && chmod +x "$work/under"
    if ! MODELS_UNDER=$work/under models placements && grep -q '^not ok' "$work/out" && grep -qE -- "$1" "$work/out"; then return; fi
    cat "$work/out"
    return 1
}
check "budgets" sees '^# qwen3-1.7b f32: 4 runs, worst difference 0\.0' budgets
check "random placements" sees '^# qwen3-1.7b f32: 2 runs, worst difference 0\.0' placements
MODELS_FAMILIES=qwen3-1.7b:2
check "from the second on" sees '^# qwen3-1.7b f32: 1 runs' placements
MODELS_FAMILIES=qwen3-1.7b
if command -v jq >/dev/null; then
    check "promotions" sees '^# qwen3-1.7b f32: [1-9][0-9]* units promoted' promotions
else
    skip "promotions" "no jq"
fi
MODELS_FAMILIES=qwen3-30b-a3b
check "experts" sees '^# qwen3-30b-a3b f32: [1-9][0-9]* experts were resident one by one' experts
MODELS_FAMILIES=qwen3-1.7b
wrong='"$@" | while read -r out rest; do printf "\100" | dd of=$out.logits bs=1 seek=7 conv=notrunc status=none; echo "$out $rest"; done'
check "a wrong logit" tells 'max_abs over 0: ' "$wrong"
check "a run that fails" tells 'run 1: no' 'while read -r plan out rest; do echo "$out no"; done'
check "a run that is missing" tells 'after 1 of 2 runs: exit codes 0 0 0 0' '"$@" | head -n 1'
check "a device that dies" tells 'exit codes 0 0 7 0' '"$@"; exit 7'
finish
