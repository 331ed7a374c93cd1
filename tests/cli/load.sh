#!/usr/bin/env bash
# tools/load: what it refuses, and that the parts that need no card start, say what they reached and end.
. "$(dirname "$0")/../support/cli.sh"

# refuses CODE WORD ARGUMENTS...: exit code CODE, one line with WORD on standard error, nothing on standard output.
refuses() {
    local code=$1 word=$2 rc
    "$B/tools/load" "${@:3}" >"$work/out" 2>"$work/err"
    rc=$?
    [ $rc -eq "$code" ] && grep -qF -- "$word" "$work/err" && [ "$(wc -l <"$work/err")" -eq 1 ] && [ ! -s "$work/out" ] && return
    echo "exit code $rc: $(cat "$work/err" "$work/out")"
    return 1
}
# runs FIGURE ARGUMENTS...: ends by itself within ten seconds, having said "on" and FIGURE.
runs() {
    timeout 10 "$B/tools/load" "${@:2}" >"$work/out" 2>&1 && [ "$(head -n 1 "$work/out")" = on ] && grep -q -- "$1" "$work/out" && return
    cat "$work/out"
    return 1
}
ends_at_a_signal() {
    : >"$work/out"
    "$B/tools/load" --cpu 10 --threads 1 >>"$work/out" &
    local pid=$!
    while [ ! -s "$work/out" ]; do sleep 0.01; done
    kill -TERM $pid && wait $pid && grep -q 'CPU .* of 1 threads' "$work/out"
}

check "nothing asked for" refuses 2 "nothing to do"
check "an unknown option" refuses 2 "--cpus: no such option" --cpus 10
check "a value that is missing" refuses 2 "--cpu: a value is missing" --cpu
check "over 100 %" refuses 2 "--cpu" --cpu 101
check "a share that is no number" refuses 2 "--gpu" --gpu lots
check "neither GB/s nor percent" refuses 2 "--memory" --memory 5x
check "no threads" refuses 2 "--threads" --cpu 10 --threads 0
check "a negative time" refuses 2 "--seconds" --cpu 10 --seconds -1
check "a size with a blank" refuses 2 "--vram" --vram "2 G"
check "two ways to take memory" refuses 2 "exclude each other" --vram 1G --vram-leave 1G
if [ -e /dev/nvidiactl ]; then
    skip "a card that is not there" "this machine has a GPU"
else
    check "a card that is not there" refuses 1 "driver" --gpu 10 --seconds 0.1
fi
check "arithmetic" runs 'CPU [0-9.]* % of 2 threads' --cpu 30 --threads 2 --seconds 0.1
check "memory at a rate" runs 'memory [0-9.]* GB/s' --memory 0.5 --threads 2 --seconds 0.2
check "memory as a share" runs 'memory [0-9.]* GB/s' --memory 10% --threads 1 --seconds 0.1
check "both" runs 'CPU .*memory' --cpu 20 --memory 0.1 --threads 1 --seconds 0.1
check "ends at a signal" ends_at_a_signal
finish
