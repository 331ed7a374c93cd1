#!/usr/bin/env bash
# Proves that includes go one way: formats <- kernels <- {planner, runtime} <- tools, tests.
# Beyond that: formats/base includes nothing above itself, runtime/schedule (which is pure) no kernels, the planner of the
# runtime only runtime/schedule, the runtime sees neither GGUF nor GLPK (not even through another header), and nobody
# includes a main.c.
# One line a fault on standard output; exit status 1 when there is one.
set -euo pipefail

cd "$(dirname "$0")/.."

# Every include of the project as "FILE QUOTED_PATH", or "FILE <system.h>".
includes() {
    find formats kernels runtime planner tools tests -type f \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 2>/dev/null | sort -z |
        xargs -0 -r grep -HE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' |
        sed -E 's/^([^:]+):[^"<]*("([^"]+)"|(<[^>]+>)).*/\1 \3\4/'
}

faults=$(includes | awk '
    # What a file may include, as a pattern of paths.
    function allowed(file) {
        if (file ~ /^formats\/base\//) return "^formats/base/"
        if (file ~ /^formats\//) return "^formats/"
        if (file ~ /^kernels\//) return "^(formats|kernels)/"
        if (file ~ /^runtime\/schedule\//) return "^(formats|runtime/schedule)/"
        if (file ~ /^runtime\//) return "^(formats|kernels|runtime)/"
        if (file ~ /^planner\//) return "^(formats|kernels|planner|runtime/schedule)/"
        return "^(formats|kernels|planner|runtime|tools|tests)/"
    }
    function exists(path,    line, found) {
        if (!(path in is_there)) {
            is_there[path] = (getline line < path) >= 0
            close(path)
        }
        return is_there[path]
    }
    # The first header of GGUF that a file reaches, through any number of others; "" when none.
    function gguf_reached(file,    i, found) {
        if (file in seen) return ""
        seen[file] = 1
        for (i = 1; i <= n_of[file]; i++) {
            if (of[file, i] ~ /^formats\/gguf/) return of[file, i]
            found = gguf_reached(of[file, i])
            if (found != "") return found
        }
        return ""
    }
    $2 == "<glpk.h>" && $1 !~ /^planner\// { print $1 ": only the planner may include <glpk.h>" }
    $2 ~ /^</ { next }
    { files[$1] = 1; of[$1, ++n_of[$1]] = $2 }
    !exists($2) { print $1 ": \"" $2 "\" is not a path from the root"; next }
    $2 !~ allowed($1) { print $1 ": may not include \"" $2 "\"" }
    $2 ~ /main\.c$/ { print $1 ": includes \"" $2 "\"" }
    END {
        for (file in files) {
            if (file !~ /^runtime\//) continue
            split("", seen)
            found = gguf_reached(file)
            if (found != "") print file ": reaches " found "; the runtime never sees GGUF"
        }
    }')
[ -z "$faults" ] || {
    echo "$faults"
    exit 1
}
