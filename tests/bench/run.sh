#!/usr/bin/env bash
# Runs the benchmarks one after the other, under a heading that says where: docs/measuring.md asks for all of it.
#   B=build tests/bench/run.sh [NAME...]     only the programs whose name contains one of NAME
set -uo pipefail

cd "$(dirname "$0")/../.." || exit 1
. tests/support/wanted.sh
B=${B:-build}

first() { grep -m1 -oP "$1" "$2" 2>/dev/null; }

echo "machine   $(first 'model name\s*: \K.*' /proc/cpuinfo), $(nproc) cores, $(free -g | awk '/^Mem/ { print $2 }') GiB"
echo "gpu       $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | paste -sd ';' || true)"
echo "system    Linux $(uname -r), $(cc --version | head -n 1)"
echo "commit    $(git rev-parse --short HEAD 2>/dev/null)$(git diff --quiet HEAD 2>/dev/null || echo ', changed')"
read -r load _ </proc/loadavg
echo "load      $load$(awk -v l="$load" -v n="$(nproc)" 'BEGIN { if (l > n / 2) print ": TOO BUSY, these figures are void" }')"

shopt -s nullglob
n_failed=0
for program in "$B"/bench/bench_*; do
    name=$(basename "$program")
    wanted "$name" "$@" || continue
    if [ "$name" = bench_cuda ] && ! nvidia-smi -L >/dev/null 2>&1; then
        printf '\n== %s: left out, no GPU\n' "$name"
        continue
    fi
    printf '\n== %s\n' "$name"
    "$program" || {
        echo "$name: exit status $?"
        n_failed=$((n_failed + 1))
    }
done
[ "$n_failed" -eq 0 ]
