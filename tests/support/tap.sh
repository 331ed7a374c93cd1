# shellcheck shell=bash
# tap.sh: sourced by the scripts of tests/cli and tests/oracle. Counts and prints TAP lines.
n_tests=0
ok() { n_tests=$((n_tests + 1)); echo "ok $n_tests - $1"; }
not_ok() { n_tests=$((n_tests + 1)); echo "not ok $n_tests - $1"; [ $# -lt 2 ] || printf '%s\n' "$2" | sed 's/^/# /'; }
skip() { n_tests=$((n_tests + 1)); echo "ok $n_tests - $1 # SKIP $2"; }
# check NAME COMMAND...: passes when the command does.
check() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then ok "$name"; else not_ok "$name" "$output"; fi
}
finish() { echo "1..$n_tests"; }

test_data() { printf '%s' "${ATSI_TEST_DATA:-../shared}"; }
# unpack_model NAME DIR: the tiny model NAME into DIR; false when the test data is not here.
unpack_model() { [ -r "$(test_data)/tiny-models/$1.tar.zst" ] && zstd -qdc "$(test_data)/tiny-models/$1.tar.zst" | tar -xf - -C "$2"; }
