#!/usr/bin/env bash
# Shows that text comes out: plans plans/demo.gguf for this machine when the stored plan is missing or refused, and runs it.
#   tools/demo.sh [BUILD_FOLDER]
set -euo pipefail

cd "$(dirname "$0")/.."
B=${1:-build}
model=plans/demo.gguf
plan=plans/demo.atsp
prompt="Once upon a time"

for program in "$B/atsi-plan" "$B/atsi-run"; do
    [ -x "$program" ] || {
        echo "demo: $program is not built; run: make" >&2
        exit 1
    }
done

if [ ! -f "$plan" ] || ! "$B/atsi-plan" --verify "$plan" >/dev/null 2>&1; then
    echo "demo: planning $model" >&2
    "$B/atsi-plan" "$model" -o "$plan"
fi

echo "demo: $B/atsi-run $plan -p \"$prompt\" -n 96 --seed 1" >&2
printf '%s' "$prompt"
"$B/atsi-run" "$plan" -p "$prompt" -n 96 --seed 1
echo
