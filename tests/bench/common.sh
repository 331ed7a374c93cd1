# shellcheck shell=bash
# common.sh: sourced by the scripts of tests/bench. Models, plans, runs and what their output says.
#   B        build folder                          WORK     where models and plans go (default: a folder in $TMPDIR)
#   DEVICE   cuda (default), sim:PROFILE.json, cpu  PROFILE  what plans are made for (default: this machine, profiled once)
#   SHRINK   options of synth_model that make every model small: to try a script where no card is
#   SECONDS_LEFT  no new measurement starts after this many seconds
B=$(realpath "${B:-build}")
DEVICE=${DEVICE:-cuda}
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")") # the folder of these scripts
WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/atsi-bench.XXXXXX")}
mkdir -p "$WORK"
trap '[ -n "${KEEP:-${PREPARE:-}}" ] || rm -rf "$WORK"' EXIT # what one call has prepared serves the next

say() { printf '== +%d s  %s\n' $SECONDS "$*"; }
time_is_left() { [ $SECONDS -lt "${SECONDS_LEFT:-100000}" ] || { say "no time left: $*"; return 1; }; }

# each_model "SHAPE OPTIONS..."...: `one SHAPE OPTIONS...` for each while there is time; fails when one of them has.
each_model() {
    local words n_bad=0
    for words; do
        time_is_left "$words" || break
        # shellcheck disable=SC2086
        one $words || n_bad=$((n_bad + 1))
    done
    say "$n_bad failed"
    [ $n_bad -eq 0 ]
}

# ids N VOCAB FILE [SEED]: N token ids, the same every time.
ids() { awk -v n="$1" -v v="$2" -v s="${4:-7}" 'BEGIN { srand(s); for (i = 0; i < n; i++) printf "%d ", int(rand() * v) }' >"$3"; }

# model SHAPE OPTIONS... -> $WORK/SHAPE.gguf
model() {
    # shellcheck disable=SC2086
    "$B/tools/synth_model" "$1" "$WORK/$1.gguf" "${@:2}" ${SHRINK:-} 2>&1 | tail -n 1
}

# plan GGUF OUT OPTIONS...: a plan, its log in OUT.log, every unit in OUT.json; what went wrong is shown.
plan() {
    local on=()
    [ -z "${PROFILE:-}" ] || on=(--device "$PROFILE")
    "$B/atsi-plan" "$1" -o "$2" "${on[@]}" --explain --json "${@:3}" >"$2.json" 2>"$2.log" && return
    echo "atsi-plan $*: $(tail -n 1 "$2.log")"
    return 1
}

# generate PLAN LOG OPTIONS...: greedy, to the end whatever comes, statistics in LOG.
generate() {
    timeout -k 2 "${RUN_SECONDS:-90}" "$B/atsi-run" "$1" --device "$DEVICE" --temp 0 --ignore-eos --print-ids --stats \
        "${@:3}" >"$2.ids" 2>"$2" && return
    echo "atsi-run ${1##*/} ${*:3}: exit code $?: $(tail -n 1 "$2")"
    return 1
}

# rate prefill|decode LOG: tokens a second.
rate() { sed -n "s/^$1 .*, \([0-9.]*\) tok\/s.*/\1/p" "$2"; }
# planned PLAN FIELD: the first number of that name in what the planner said of the plan, chunks that were only tried left out.
planned() { sed 's/"chunks": *\[[^]]*\]//' "$1.json" | grep -o "\"$2\": *[0-9.]*" | head -n 1 | sed 's/.*: *//'; }
# predicted_ms LOG PLAN [static]: of one decoded token, by the run itself, else by the planner (static: nothing moves).
predicted_ms() {
    local said
    said=$(sed -n 's/^a token .*predicted \([0-9.]*\) ms.*/\1/p' "$1")
    [ -n "$said" ] || said=$(planned "$2" "decode${3:+_static}_us" | awk '{ printf "%.2f", $1 / 1000 }')
    echo "$said"
}
# planned_prefill PLAN [static]: tokens a second.
planned_prefill() { awk -v n="$(planned "$1" chunk)" -v us="$(planned "$1" "prefill${2:+_static}_us")" 'BEGIN { printf "%.1f", (us > 0 ? n * 1e6 / us : 0) }'; }
planned_mib() { awk -v n="$(planned "$1" "$2")" 'BEGIN { printf "%.0f", n / 1048576 }'; }
mib_on() { sed -n "s/^load .* \([0-9.]*\) MiB on the $1.*/\1/p" "$2"; }
ratio() { awk -v a="${1:-0}" -v b="${2:-0}" 'BEGIN { if (b > 0) printf "%.2f", a / b; else printf "-" }'; }
# median of its arguments
median() { printf '%s\n' "$@" | sort -g | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; else print "-" }'; }

# Of a file with a number a line: middle FILE is its median, spread FILE that with the smallest and the largest.
# shellcheck disable=SC2046
middle() { median $(cat "$1"); }
spread() {
    [ -s "$1" ] || { printf -- -; return; }
    printf '%.4g (%.4g-%.4g, %d runs)' "$(middle "$1")" "$(sort -g "$1" | head -n 1)" "$(sort -g "$1" | tail -n 1)" "$(wc -l <"$1")"
}

# run_peer GGUF THREADS N_PREFILL N_DECODE DEPTH: another program on the same file, where PEER names it (see pair.sh); its rates are added
# to $WORK/peer.prefill and $WORK/peer.decode, the rest of what it says stays in $WORK/peer.log.
run_peer() {
    [ -n "${PEER:-}" ] || return 0
    # shellcheck disable=SC2086
    timeout -k 5 "${RUN_SECONDS:-90}" $PEER "$@" >"$WORK/peer.log" 2>&1 ||
        { echo "peer: exit code $?: $(tail -n 2 "$WORK/peer.log")"; return 1; }
    sed -n 's/^prefill //p' "$WORK/peer.log" >>"$WORK/peer.prefill"
    sed -n 's/^decode //p' "$WORK/peer.log" >>"$WORK/peer.decode"
}

# used_share SHAPE: of the experts, as used/all.
used_share() { "$B/tools/synth_model" --list | awk -v s="$1" '$1 == s { if (match($0, /[0-9]+ of [0-9]+/)) { split(substr($0, RSTART, RLENGTH), n, " of "); print n[1] "/" n[2] } else print "1/1" }'; }
# floor PLAN SHAPE POSITION CONTEXT [FOUND]: "R_GB N_GB floor_ms" at the rates in FLOOR_RATES (card, CPU beside the link, link beside the
# CPU); FOUND % of the chosen experts were read on the card.
floor() {
    # shellcheck disable=SC2086
    python3 "$here/floor.py" "$3" "$4" "$(used_share "$2")" ${FLOOR_RATES:-4345 78 51} "${5:-0}" <"$1.json"
}
# found LOG: of the experts that a run chose in its last rounds, how many percent were resident one by one; nothing where none could be.
found() { sed -n 's/^resident .* \([0-9.]*\) % lately.*/\1/p' "$1"; }

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

# The card's own counters once a second: watch_card FILE; card_over FILE SECONDS ends it and prints "busy_% link_GB/s" of the
# last so many seconds.
watch_card() {
    command -v nvidia-smi >/dev/null || return 0
    stdbuf -oL nvidia-smi dmon -s ut -d 1 >"$1" 2>/dev/null &
    card_watcher=$!
}
card_over() {
    [ -z "${card_watcher:-}" ] || kill "$card_watcher" 2>/dev/null
    # Columns are found by name: their number differs between drivers.
    awk -v seconds="$2" '
        /^#/ { for (i = 2; i <= NF; i++) if (!($i in column)) column[$i] = i - 1; next }
        NF { n++; busy[n] = $column["sm"]; link[n] = $column["rxpci"] }
        END {
            count = int(seconds) < 1 ? 1 : int(seconds)
            for (i = n - count; i < n; i++) if (i > 0) { b += busy[i]; l += link[i]; m++ }
            if (m && "rxpci" in column) printf "%.0f %.1f\n", b / m, l / m / 1000; else print "- -"
        }' "$1" 2>/dev/null || echo "- -"
}

heading() {
    echo "machine  $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors; $(nvidia-smi \
        --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)"
    echo "commit   $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo '?'), device $DEVICE, load $(cut -d' ' -f1 /proc/loadavg), $(date -u +%F)"
}
