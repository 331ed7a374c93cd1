#!/usr/bin/env bash
# Long random runs: the tests that draw placements, transfers and delays at random draw many more, first as built and then
# under ThreadSanitizer. The seeds of run k are the same everywhere, so a failure that names its seed can be repeated.
#   B=build ATSI_SOAK_RUNS=1000 ATSI_SOAK_PLACEMENTS=200 tests/soak.sh
# ATSI_SOAK_RUNS: texts of test_executor, each with a new assignment in every second round and delayed streams, and of
# test_session_load, whose assignments are decided beside the rounds for speeds that change all the time.
# ATSI_SOAK_PLACEMENTS: placements of each tiny model (tests/cli/placements.sh); a tenth of them under ThreadSanitizer.
set -euo pipefail

cd "$(dirname "$0")/.."
export ATSI_SOAK_RUNS=${ATSI_SOAK_RUNS:-1000} ATSI_SOAK_PLACEMENTS=${ATSI_SOAK_PLACEMENTS:-200}
export ATSI_TEST_TIMEOUT=${ATSI_TEST_TIMEOUT:-14400}

B=${B:-build} tests/run.sh test_executor test_session_load placements
tsan=build/tsan
make --no-print-directory B=$tsan SAN=thread OPT='-O1 -g' CUDA=0 all $tsan/tests/test_executor $tsan/tests/test_session_load
ATSI_SOAK_PLACEMENTS=$(((ATSI_SOAK_PLACEMENTS + 9) / 10)) B=$tsan tests/run.sh test_executor test_session_load placements
