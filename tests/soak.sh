#!/usr/bin/env bash
# Long random runs: the tests that draw placements, transfers and delays at random draw many more, first as built and then
# under ThreadSanitizer. The seeds of run k are the same everywhere, so a failure that names its seed can be repeated.
#   B=build ATSI_SOAK_RUNS=1000 tests/soak.sh
set -euo pipefail

cd "$(dirname "$0")/.."
export ATSI_SOAK_RUNS=${ATSI_SOAK_RUNS:-1000} ATSI_TEST_TIMEOUT=${ATSI_TEST_TIMEOUT:-7200}
random_tests=(test_executor)

B=${B:-build} tests/run.sh "${random_tests[@]}"
tsan=build/tsan
make --no-print-directory B=$tsan SAN=thread OPT='-O1 -g' CUDA=0 "${random_tests[@]/#/$tsan/tests/}"
B=$tsan tests/run.sh "${random_tests[@]}"
