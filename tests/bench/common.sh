# shellcheck shell=bash
# common.sh: sourced by the scripts of tests/bench. Models, plans, runs and what their output says.
#   B        build folder                          WORK     where models and plans go (default: a folder in $TMPDIR)
#   DEVICE   cuda (default), sim:PROFILE.json, cpu  PROFILE  what plans are made for (default: this machine, profiled once)
#   SHRINK   options of synth_model that make every model small: to try a script where no card is
#   SECONDS_LEFT  no new measurement starts after this many seconds
B=$(realpath "${B:-build}")
DEVICE=${DEVICE:-cuda}
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/atsi-bench.XXXXXX")}
mkdir -p "$WORK"
trap 'rm -rf "$WORK"' EXIT

say() { printf '== +%d s  %s\n' $SECONDS "$*"; }
time_is_left() { [ $SECONDS -lt "${SECONDS_LEFT:-100000}" ] || { say "no time left: $*"; return 1; }; }

# ids N VOCAB FILE: N token ids, the same every time.
ids() { awk -v n="$1" -v v="$2" 'BEGIN { srand(7); for (i = 0; i < n; i++) printf "%d ", int(rand() * v) }' >"$3"; }

# model SHAPE OPTIONS... -> $WORK/SHAPE.gguf
model() {
    # shellcheck disable=SC2086
    "$B/tools/synth_model" "$1" "$WORK/$1.gguf" "${@:2}" ${SHRINK:-} 2>&1 | tail -n 1
}

# plan GGUF OUT OPTIONS...: a plan, its log in OUT.log; what went wrong is shown.
plan() {
    local on=()
    [ -z "${PROFILE:-}" ] || on=(--device "$PROFILE")
    "$B/atsi-plan" "$1" -o "$2" "${on[@]}" "${@:3}" >"$2.log" 2>&1 && return
    echo "atsi-plan $*: $(tail -n 1 "$2.log")"
    return 1
}

# generate PLAN LOG OPTIONS...: greedy, to the end whatever comes, statistics in LOG.
generate() {
    timeout -k 5 "${RUN_SECONDS:-90}" "$B/atsi-run" "$1" --device "$DEVICE" --temp 0 --ignore-eos --print-ids --stats \
        "${@:3}" >"$2.ids" 2>"$2" && return
    echo "atsi-run ${1##*/} ${*:3}: exit code $?: $(tail -n 1 "$2")"
    return 1
}

# rate prefill|decode LOG: tokens a second.
rate() { sed -n "s/^$1 .*, \([0-9.]*\) tok\/s.*/\1/p" "$2"; }
# token_ms predicted|measured LOG: of one decoded token.
token_ms() { sed -n "s/^a token .*$1 \([0-9.]*\) ms.*/\1/p" "$2"; }
mib_on() { sed -n "s/^load .* \([0-9.]*\) MiB on the $1.*/\1/p" "$2"; }
ratio() { awk -v a="${1:-0}" -v b="${2:-0}" 'BEGIN { if (b > 0) printf "%.2f", a / b; else printf "-" }'; }
# median of its arguments
median() { printf '%s\n' "$@" | sort -g | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; else print "-" }'; }

# GPU memory as the driver counts it, polled ten times a second: watch_memory FILE; peak_mib FILE ends it and prints the most.
# Where processes are not counted one by one the card's own use is taken, less what was used before.
watch_memory() {
    command -v nvidia-smi >/dev/null || return 0
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits >"$1.before"
    stdbuf -oL nvidia-smi --query-compute-apps=used_memory --format=csv,noheader,nounits -lms 100 >"$1.apps" 2>/dev/null &
    watchers=$!
    stdbuf -oL nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 100 >"$1.card" 2>/dev/null &
    watchers="$watchers $!"
}
peak_mib() {
    # shellcheck disable=SC2086
    [ -z "${watchers:-}" ] || { kill $watchers; wait $watchers; } 2>/dev/null
    watchers=
    [ -e "$1.card" ] || { echo 0; return; }
    awk -v before="$(head -n 1 "$1.before")" '
        FILENAME ~ /apps$/ && $1 ~ /^[0-9]+$/ && $1 > apps { apps = $1 }
        FILENAME ~ /card$/ && $1 - before > card { card = $1 - before }
        END { print apps ? apps : card + 0 }' "$1.apps" "$1.card"
}

heading() {
    echo "machine  $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors; $(nvidia-smi \
        --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)"
    echo "commit   $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo '?'), device $DEVICE, load $(cut -d' ' -f1 /proc/loadavg), $(date -u +%F)"
}
