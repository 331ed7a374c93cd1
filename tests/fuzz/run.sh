#!/usr/bin/env bash
# Runs every fuzz target in $B/fuzz for FUZZ_SECONDS, from seeds made by the tests' builders and from tests/fuzz/corpus/TARGET
# where that exists. What a run finds stays in $B/fuzz/corpus for the next one. Prints TAP; fails when a target does.
#   B=build/fuzz FUZZ_SECONDS=60 tests/fuzz/run.sh [TARGET...]
set -uo pipefail

cd "$(dirname "$0")/../.." || exit 1
B=${B:-build/fuzz}
seconds=${FUZZ_SECONDS:-60}
n=0 n_failed=0

# fuzz TARGET -> status of the target. An input may take 5 s and 256 MiB; the readers promise far less.
fuzz() {
    local target=$1 corpus=$B/fuzz/corpus/$1 log=$B/fuzz/$1.log extra=()
    mkdir -p "$corpus"
    "$B/fuzz/seeds" "$target" "$corpus" || return 1
    [ -d "tests/fuzz/corpus/$target" ] && extra=("tests/fuzz/corpus/$target")
    "$B/fuzz/$target" -max_total_time="$seconds" -timeout=5 -malloc_limit_mb=256 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="$B/fuzz/$target-" "$corpus" "${extra[@]}" >"$log" 2>&1
}

summary() {
    awk '/^stat::number_of_executed_units/ { runs = $2 } /cov:/ { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i + 1) }
        END { printf "%s runs, coverage %s", runs, cov }' "$B/fuzz/$1.log"
}

targets=("$@")
if [ $# -eq 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do targets+=("$(basename "$source" .c)"); done
fi
echo "1..${#targets[@]}"
for target in "${targets[@]}"; do
    n=$((n + 1))
    if fuzz "$target"; then
        echo "ok $n - $target ($(summary "$target"))"
    else
        echo "not ok $n - $target: see $B/fuzz/$target.log and the input $B/fuzz/$target-*"
        tail -n 40 "$B/fuzz/$target.log" | sed 's/^/# /'
        n_failed=$((n_failed + 1))
    fi
done
[ "$n_failed" -eq 0 ]
