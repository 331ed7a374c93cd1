#!/usr/bin/env bash
# Runs the tests whose oracles come from PyPI: the reference reader of GGUF and the tokenizers library.
# They live in a virtual environment under $B, made on the first run. Needs Python 3 with venv.
set -euo pipefail

cd "$(dirname "$0")/../.."
export B=${B:-build} ATSI_TEST_TIMEOUT=${ATSI_TEST_TIMEOUT:-1800} # Python and large vocabularies are slow
venv=$B/oracle-venv
requirements=tests/oracle/requirements.txt

if ! cmp -s "$requirements" "$venv/requirements.txt"; then
    echo "oracle: installing $(tr '\n' ' ' <"$requirements")" >&2
    python3 -m venv --clear "$venv" || {
        echo "oracle: needs Python's venv; install python3-venv" >&2
        exit 1
    }
    # llama.cpp without the machine's own instructions: its AMX kernels fault on some virtual machines. pip would take what it
    # built with them before.
    CMAKE_ARGS=${CMAKE_ARGS:--DGGML_NATIVE=OFF} "$venv/bin/pip" install --quiet --no-cache-dir --requirement "$requirements"
    cp "$requirements" "$venv/requirements.txt"
fi

PYTHON=$venv/bin/python exec tests/run.sh --files tests/oracle/test_*.py
