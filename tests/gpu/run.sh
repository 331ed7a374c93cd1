#!/bin/sh
# Checks and measures the CUDA part on a machine with a card, in one go.
#   tests/gpu/run.sh [check|sanitize|bench ...]      B: build folder, OUT: where logs go (default: $B)
# Without words: check and bench. The test needs libcmocka; everything it prints is kept in $OUT.
set -u
B=${B:-build} OUT=${OUT:-${B:-build}}
mkdir -p "$OUT"
[ $# -gt 0 ] || set -- check bench
failed=0

# A step by name: its output in $OUT/NAME.log, the last lines shown.
step() {
    name=$1
    shift
    echo "== $name"
    "$@" >"$OUT/$name.log" 2>&1 || { failed=1; echo "FAILED: $name"; }
    tail -n "${LINES_SHOWN:-60}" "$OUT/$name.log"
}

make -s -j"$(nproc)" B="$B" "$B/gpu/test_cuda" "$B/bench/bench_cuda" || exit 1
for what; do
    case $what in
    check) step check "$B/gpu/test_cuda" ;;
    sanitize) # one test asks for memory that there is not, so refused calls do not count
        for tool in memcheck racecheck initcheck; do
            step "$tool" compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 "$B/gpu/test_cuda" small
        done ;;
    bench) LINES_SHOWN=200 step bench "$B/bench/bench_cuda" ;;
    *) step "bench-$what" "$B/bench/bench_cuda" "$what" ;;
    esac
done
exit $failed
