#!/usr/bin/env bash
# The rules of CONTRIBUTING.md that a script can prove.
set -uo pipefail

cd "$(dirname "$0")/../.." || exit 1
n=0

# report NAME FAULTS: one TAP line; faults, one a line, are shown as comments.
report() {
    n=$((n + 1))
    if [ -z "$2" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        while read -r line; do echo "# $line"; done <<<"$2"
    fi
}

sources() {
    find formats kernels runtime planner tools tests -type f \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' \) 2>/dev/null | sort
}

report "includes go one way" "$(tools/check_includes.sh)"

report "files stay under 600 lines" "$(
    while read -r file; do
        lines=$(wc -l <"$file")
        if [ "$lines" -ge 600 ]; then echo "$file: $lines lines"; fi
    done < <(sources)
)"

report "shell scripts parse" "$(
    while read -r file; do bash -n "$file" 2>&1; done < <(sources | grep '\.sh$'; echo .ci/run)
)"

report "scripts that the Makefile calls are executable" "$(
    for file in tools/*.sh tests/run.sh .ci/run; do [ -x "$file" ] || echo "$file"; done
)"

report "nothing is left to do in the code" "$(
    sources | grep -v '^tests/cli/repository.sh$' | xargs grep -nE '\b(TODO|FIXME|XXX|HACK)\b' || true
)"

report "only the two main.c end the process" "$(
    find formats kernels runtime planner -name '*.c' ! -name main.c -print0 2>/dev/null |
        xargs -0 -r grep -nE '(^|[^_[:alnum:]])(exit|_exit|abort)\(' || true
)"
echo "1..$n"
