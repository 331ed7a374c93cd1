#!/usr/bin/env bash
# Runs every unit test program in $B/tests and every script in tests/cli, and counts their TAP lines.
#   B=build tests/run.sh [NAME...]           only the programs whose name contains one of NAME
#   B=build tests/run.sh --files FILE...     these files and nothing else (.sh by bash, .py by $PYTHON)
# Prints one line a program, the output of those that failed, and at the end `N passed, N failed, N skipped`.
# A program that crashes, runs out of time, prints no TAP or runs fewer tests than it announced counts as a failure.
#   ATSI_TEST_TIMEOUT   seconds a program may take (default 300)
set -uo pipefail

cd "$(dirname "$0")/.." || exit 1
. tests/support/wanted.sh
B=${B:-build}
timeout_s=${ATSI_TEST_TIMEOUT:-300}
export B CMOCKA_MESSAGE_OUTPUT=TAP

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n_passed=0 n_failed=0 n_skipped=0

# count_tap FILE -> prints "passed failed skipped planned"; planned is -1 without a plan line.
count_tap() {
    awk '
        /^ok([[:space:]]|$)/ { if (/#[[:space:]]*[Ss][Kk][Ii][Pp]/) skipped++; else passed++ }
        /^not ok([[:space:]]|$)/ { if (/#[[:space:]]*[Ss][Kk][Ii][Pp]/) skipped++; else failed++ }
        /^1\.\.0[[:space:]]*#[[:space:]]*[Ss][Kk][Ii][Pp]/ { skipped++ }
        /^1\.\.[0-9]+/ { split($1, range, "[.][.]"); planned += range[2]; has_plan = 1 }
        END { print passed + 0, failed + 0, skipped + 0, has_plan ? planned : -1 }' "$1"
}

# why_broken STATUS PASSED FAILED SKIPPED PLANNED -> prints why the program as a whole failed, nothing when it did not.
why_broken() {
    local status=$1 n_run=$(($2 + $3 + $4)) planned=$5
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        echo "stopped after $timeout_s s (ATSI_TEST_TIMEOUT=SECONDS allows more)"
    elif [ "$status" -gt 128 ]; then
        echo "killed by signal $((status - 128))"
    elif [ "$n_run" -eq 0 ] && [ "$planned" -ne 0 ]; then
        echo "printed no test result (exit status $status)"
    elif [ "$planned" -gt "$n_run" ]; then
        echo "announced $planned tests, ran $n_run"
    elif [ "$status" -ne 0 ] && [ "$3" -eq 0 ]; then
        echo "exit status $status without a failed test"
    fi
}

# skip_reasons FILE -> one line a skipped test. cmocka's directive holds only the test's name, so C tests print a line
# "skipped: why" of their own; scripts say it in the directive.
skip_reasons() {
    grep '^skipped: ' "$1" || sed -n 's/^.*#[[:space:]]*[Ss][Kk][Ii][Pp][[:space:]]*/skipped: /p' "$1"
}

# run_program NAME COMMAND...
run_program() {
    local name=$1 log=$work/log start=$SECONDS status passed failed skipped planned broken
    shift
    # The braces keep bash's own note about a crash off the screen.
    { timeout --kill-after=10 "$timeout_s" "$@" </dev/null >"$log" 2>&1; } 2>/dev/null
    status=$?
    read -r passed failed skipped planned < <(count_tap "$log")
    broken=$(why_broken "$status" "$passed" "$failed" "$skipped" "$planned")
    [ -z "$broken" ] || failed=$((failed + 1))
    n_passed=$((n_passed + passed)) n_failed=$((n_failed + failed)) n_skipped=$((n_skipped + skipped))
    printf '%-32s %4d passed %3d failed %3d skipped %4d s%s\n' "$name" "$passed" "$failed" "$skipped" \
        $((SECONDS - start)) "${broken:+  $broken}"
    if [ "$failed" -gt 0 ]; then
        sed 's/^/    /' "$log" | tail -n 200
    elif [ "$skipped" -gt 0 ]; then
        skip_reasons "$log" | sort | uniq -c
    fi
}

run_file() {
    local name=${1#tests/}
    case $1 in
    *.sh) run_program "${name%.sh}" bash "$1" ;;
    *.py) run_program "${name%.py}" "${PYTHON:-python3}" "$1" ;;
    *) run_program "$(basename "$1")" "$1" ;;
    esac
}

run_suite() {
    local file name
    for file in "$B"/tests/test_* tests/cli/*.sh; do
        name=$(basename "$file")
        case $name in
        _*) continue ;; # _x.sh is sourced by the others
        *.sh) [ -f "$file" ] || continue ;;
        *) if [ ! -f "$file" ] || [ ! -x "$file" ]; then continue; fi ;;
        esac
        # Scripts are asked for as they are printed, too: cli/plan.
        if wanted "$(basename "$(dirname "$file")")/$name" "$@"; then run_file "$file"; fi
    done
}

shopt -s nullglob
if [ "${1:-}" = --files ]; then
    shift
    for file in "$@"; do run_file "$file"; done
else
    run_suite "$@"
fi

if [ $((n_passed + n_failed + n_skipped)) -eq 0 ]; then
    echo "no test was found in $B/tests and tests/cli"
    n_failed=1
fi
echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
[ "$n_failed" -eq 0 ]
