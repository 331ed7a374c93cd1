#!/usr/bin/env bash
# Proves that includes go one way: formats <- kernels <- {planner, runtime} <- tools, tests.
# Beyond that: formats/base includes nothing above itself, the planner sees of the runtime only runtime/schedule, the
# runtime sees neither GGUF nor GLPK (not even through another header), and nobody includes a main.c.
# One line a fault on standard output; exit status 1 when there is one.
set -euo pipefail

cd "$(dirname "$0")/.."

# allowed FILE -> an extended regular expression of the paths that FILE may include.
allowed() {
    case $1 in
    formats/base/*) echo '^formats/base/' ;;
    formats/*) echo '^formats/' ;;
    kernels/*) echo '^(formats|kernels)/' ;;
    runtime/schedule/*) echo '^(formats|kernels|runtime/schedule)/' ;;
    runtime/*) echo '^(formats|kernels|runtime)/' ;;
    planner/*) echo '^(formats|kernels|planner|runtime/schedule)/' ;;
    *) echo '^(formats|kernels|planner|runtime|tools|tests)/' ;;
    esac
}

# check_directions FILE: every quoted include is written from the root, exists, and is allowed.
check_directions() {
    local file=$1 pattern target
    pattern=$(allowed "$file")
    while read -r target; do
        if [ ! -f "$target" ]; then
            echo "$file: \"$target\" is not a path from the root"
        elif ! grep -qE "$pattern" <<<"$target"; then
            echo "$file: may not include \"$target\""
        elif [[ $target == *main.c ]]; then
            echo "$file: includes \"$target\""
        fi
    done < <(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"([^"]+)".*/\1/p' "$file")
    if [[ $file != planner/* ]] && grep -qE '#[[:space:]]*include[[:space:]]*<glpk\.h>' "$file"; then
        echo "$file: only the planner may include <glpk.h>"
    fi
}

# reached FILE... -> every header of the project that the files include, directly or not.
reached() {
    local next found="" todo="$*"
    while [ -n "$todo" ]; do
        # shellcheck disable=SC2086  # paths of this project have no spaces
        next=$(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"([^"]+)".*/\1/p' $todo 2>/dev/null | sort -u || true)
        todo=$(comm -23 <(echo "$next") <(echo "$found") | grep -v '^$' || true)
        found=$(printf '%s\n%s\n' "$found" "$todo" | grep -v '^$' | sort -u || true)
    done
    echo "$found"
}

sources() {
    find "$@" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort
}

faults=$(
    while read -r file; do check_directions "$file"; done < <(sources formats kernels runtime planner tools tests)
    while read -r file; do
        if reached "$file" | grep -qE '^formats/gguf'; then
            echo "$file: reaches $(reached "$file" | grep -E '^formats/gguf' | head -n 1); the runtime never sees GGUF"
        fi
    done < <(sources runtime)
)
[ -z "$faults" ] || {
    echo "$faults"
    exit 1
}
