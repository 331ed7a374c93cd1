#!/usr/bin/env bash
# docs/models.md is what the code supports.
. "$(dirname "$0")/../support/cli.sh"
same() { diff docs/models.md <("$B/tools/support_table"); }
check "docs/models.md is up to date" same
listed() { # the refusal of an unknown family names every family of the table
    local arch
    printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\24\0\0\0\0\0\0\0general.architecture\10\0\0\0\4\0\0\0\0\0\0\0nope' >"$1"
    "$B/atsi-plan" "$1" --vram 0 -o "$1.atsp" 2>"$1.err" && return 1
    sed -n 's/^| `\([^`]*\)` .*/\1/p' docs/models.md | grep -v general.architecture | while read -r arch; do
        grep -qw -- "$arch" "$1.err" || { echo "$arch is not in: $(cat "$1.err")"; return 1; }
    done
}
check "an unknown family is told what exists" listed "$work/nope.gguf"
finish
