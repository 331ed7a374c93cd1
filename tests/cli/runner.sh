#!/usr/bin/env bash
# The runner itself: whatever goes wrong in a test program must be counted as a failure.
. "$(dirname "$0")/../support/cli.sh"

# expect NAME LAST_LINE BODY: the runner's last line for one test program with that body.
expect() {
    local found
    printf '#!/bin/sh\n%s\n' "$3" >"$work/program.sh"
    found=$(ATSI_TEST_TIMEOUT=1 tests/run.sh --files "$work/program.sh" 2>&1 | tail -n 1)
    if [ "$found" = "$2" ]; then ok "$1"; else not_ok "$1" "found \"$found\", expected \"$2\""; fi
}

expect "passed, failed and skipped tests are counted" "1 passed, 1 failed, 1 skipped" \
    'echo 1..3; echo ok 1; echo "not ok 2 - bad"; echo "ok 3 # SKIP no data"'
expect "a skipped program counts as one" "0 passed, 0 failed, 1 skipped" 'echo "1..0 # SKIP no card"'
expect "a crash" "1 passed, 1 failed, 0 skipped" 'echo 1..1; echo ok 1; kill -SEGV $$'
expect "a program that hangs" "1 passed, 1 failed, 0 skipped" 'echo 1..1; echo ok 1; sleep 20'
expect "a program that stops early" "1 passed, 1 failed, 0 skipped" 'echo 1..2; echo ok 1'
expect "a program that says nothing" "0 passed, 1 failed, 0 skipped" 'exit 0'
expect "an exit status without a failed test" "1 passed, 1 failed, 0 skipped" 'echo 1..1; echo ok 1; exit 3'

if B=$work/absent tests/run.sh no-such-test >"$work/log"; then
    not_ok "no test at all fails"
else
    ok "no test at all fails"
fi
finish
