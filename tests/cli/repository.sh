#!/usr/bin/env bash
# The rules of CONTRIBUTING.md that a script can prove.
set -uo pipefail

cd "$(dirname "$0")/../.." || exit 1
. tests/support/tap.sh

# no_faults NAME FAULTS: passes when FAULTS, one a line, is empty.
no_faults() {
    if [ -z "$2" ]; then ok "$1"; else not_ok "$1" "$2"; fi
}

sources() {
    find formats kernels runtime planner tools tests -type f \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' \) 2>/dev/null | sort
}

no_faults "includes go one way" "$(tools/check_includes.sh)"

no_faults "files stay under 600 lines" "$(
    while read -r file; do
        lines=$(wc -l <"$file")
        if [ "$lines" -ge 600 ]; then echo "$file: $lines lines"; fi
    done < <(sources)
)"

no_faults "shell scripts parse" "$(
    while read -r file; do bash -n "$file" 2>&1; done < <(sources | grep '\.sh$'; echo .ci/run)
)"

no_faults "scripts that the Makefile calls are executable" "$(
    for file in tools/*.sh tests/run.sh .ci/run; do [ -x "$file" ] || echo "$file"; done
)"

no_faults "nothing is left to do in the code" "$(
    sources | grep -v '^tests/cli/repository.sh$' | xargs grep -nE '\b(TODO|FIXME|XXX|HACK)\b' || true
)"

no_faults "only the two main.c end the process" "$(
    find formats kernels runtime planner -name '*.c' ! -name main.c -print0 2>/dev/null |
        xargs -0 -r grep -nE '(^|[^_[:alnum:]])(exit|_exit|abort)\(' || true
)"
finish
