#!/usr/bin/env bash
# Checks the form of the code: layout (clang-format), faults that a compiler misses (clang-tidy), shell scripts
# (shellcheck) and the direction of includes. Changes nothing; exit status 1 when something is wrong.
#   tools/lint.sh [FILE...]      only these files (default: every file that git tracks)
#   tools/lint.sh --fix [FILE...]  rewrites the layout instead of checking it, and stops there
# A tool that is not installed is left out with a line that says so; tools/setup.sh --lint installs them all.
set -uo pipefail

cd "$(dirname "$0")/.." || exit 1

fix=
if [ "${1:-}" = --fix ]; then
    fix=1
    shift
fi

if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(git ls-files); fi
layout=() c_sources=() shell_scripts=()
for file in "${files[@]}"; do
    [ -f "$file" ] || continue
    case $file in
    *.c) layout+=("$file") c_sources+=("$file") ;;
    *.h | *.cu | *.cuh) layout+=("$file") ;;
    *.sh | .ci/run) shell_scripts+=("$file") ;;
    esac
done

n_wrong=0

# have TOOL: whether it is installed; says so when not.
have() {
    command -v "$1" >/dev/null && return 0
    echo "lint: $1 is not installed, its checks are left out (tools/setup.sh --lint)" >&2
    return 1
}

# check NAME COMMAND...: runs it and counts a failure.
check() {
    local name=$1
    shift
    if "$@"; then
        echo "lint: $name ok"
    else
        echo "lint: $name failed"
        n_wrong=$((n_wrong + 1))
    fi
}

# The instruction-set flags follow the suffix of the file, as in the Makefile.
isa_flags() {
    case $1 in
    *_avx2.c) echo "-mavx2 -mfma -mf16c" ;;
    *_avxvnni.c) echo "-mavx2 -mfma -mf16c -mavxvnni" ;;
    *_avx512.c) echo "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni" ;;
    *_avx512vbmi.c) echo "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi" ;;
    *_avx512amx.c) echo "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mamx-tile -mamx-int8 -mamx-bf16" ;;
    esac
}

tidy_one() {
    # shellcheck disable=SC2046  # the flags are separate words
    clang-tidy --quiet "$1" -- -std=c11 -I. -D_GNU_SOURCE $(isa_flags "$1") 2>/dev/null
}

tidy() {
    export -f tidy_one isa_flags
    # Tests are held to the layout only: cmocka's macros trip the analyzer.
    # shellcheck disable=SC2016  # $1 is expanded by the inner shell
    printf '%s\n' "${c_sources[@]}" | { grep -v '^tests/' || true; } | xargs -r -P "$(nproc)" -I{} bash -c 'tidy_one "$1"' _ {}
}

if [ -n "$fix" ]; then
    have clang-format || exit 1
    clang-format -i "${layout[@]}"
    exit
fi

if [ ${#layout[@]} -gt 0 ] && have clang-format; then
    check "layout" clang-format --dry-run -Werror "${layout[@]}"
fi
if [ ${#c_sources[@]} -gt 0 ] && have clang-tidy; then check "clang-tidy" tidy; fi
if [ ${#shell_scripts[@]} -gt 0 ] && have shellcheck; then
    check "shell scripts" shellcheck --severity=warning "${shell_scripts[@]}"
fi
check "include directions" tools/check_includes.sh
[ "$n_wrong" -eq 0 ]
