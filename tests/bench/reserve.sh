#!/usr/bin/env bash
# Sharing the card: a program that takes memory in mid-generation and later frees it, how fast resident weights are loaded, and a start
# on a card that is too full.
#   tests/bench/reserve.sh     SHAPE=qwen3-14b VRAM=6G TAKE=2G RESERVE=768M SLACK=64 (MiB) PHASE_SECONDS=5
# Goals: the same text (as far as the rounding of both sides agrees), no crash, speed dips and returns; loading in less
# than twice the time that the link needs (LINK_GB_S, default 55); a smaller resident set at the start in one line, --strict an error.
# Settings that all scripts here share: tests/bench/common.sh.
set -uo pipefail
. "$(dirname "$0")/common.sh"
shape=${SHAPE:-qwen3-14b} vram=${VRAM:-6G} take=${TAKE:-2G} reserve=${RESERVE:-768M} seconds=${PHASE_SECONDS:-5}
link=${LINK_GB_S:-55}
others=
trap '[ -z "$others" ] || kill $others 2>/dev/null; rm -rf "$WORK"' EXIT
n_bad=0
verdict() { # WORDS COMMAND...
    if "${@:2}"; then echo "    ok: $1"; else
        echo "    NOT OK: $1"
        n_bad=$((n_bad + 1))
    fi
}

# hold OPTIONS...: another program takes memory of the card; returns when it has it, or as much as there is now.
hold() {
    "$B/tools/load" "$@" >"$WORK/load.$#.out" 2>"$WORK/load.err" &
    holder=$!
    others="$others $holder"
    for ((i = 0; i < 100; i++)); do
        if grep -q on "$WORK/load.$#.out"; then return; fi
        kill -0 $holder 2>/dev/null || break
        sleep 0.1
    done
    echo "    load $*: $(tail -n 1 "$WORK/load.err")"
    return 1
}
release() { # PID
    kill "$1" 2>/dev/null
    wait "$1" 2>/dev/null
}
free_mib() { nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits 2>/dev/null | head -n 1; }
mib() { awk -v s="$1" 'BEGIN { n = s + 0; print s ~ /G/ ? n * 1024 : n }'; }

# words_over SECONDS: tokens a second and free memory, twice a second.
words_over() {
    local before now
    before=$(wc -w <"$WORK/ids")
    for ((k = 0; k < 2 * $1; k++)); do
        sleep 0.5
        now=$(wc -w <"$WORK/ids")
        printf ' %d' $((2 * (now - before)))
        before=$now
    done
    printf '   (%s MiB free)\n' "$(free_mib)"
}

run() { # OPTIONS...: ids on standard output
    timeout -k 5 60 "$B/atsi-run" "$WORK/m.atsp" --device "$DEVICE" --temp 0 --ignore-eos --print-ids --stats \
        --tokens-in "$WORK/prompt" "$@"
}
# The tokens are those that an undisturbed run gives the largest logits, but for ties within rounding (chosen.py).
same_text() {
    cat "$WORK/prompt" "$WORK/ids" >"$WORK/both"
    timeout -k 5 60 "$B/atsi-run" "$WORK/m.atsp" --device "$DEVICE" --temp 0 --tokens-in "$WORK/both" -n 0 --logits "$WORK/logits" \
        --quiet --vram-reserve 0 >/dev/null || return 1
    printf '    ' && python3 "$here/chosen.py" "$WORK/logits" 64 "$WORK/ids"
}

heading
model "$shape" || exit 1
ids 64 "${VOCAB:-150000}" "$WORK/prompt"
plan "$WORK/$shape.gguf" "$WORK/m.atsp" --vram "$vram" --ctx 4096 || exit 1
rm -f "$WORK/$shape.gguf"

say "(b) loading, page cache warm"
for i in 1 2 3; do
    run -n 2 >"$WORK/ids" 2>"$WORK/log" || n_bad=$((n_bad + 1))
    sed -n 's/^weights .*card \([0-9.]*\), reading and copying to it \([0-9.]*\),.*/\1 \2/p' "$WORK/log" | awk -v link="$link" -v mib="$(mib_on GPU "$WORK/log")" '{
        printf "    %.0f ms for %.0f MiB on the card: %.2f times the time of the link\n", $1 + $2, mib, ($1 + $2) / (mib * 1.048576 / link) }'
    grep -E '^(load|weights|memory|reserve)' "$WORK/log" | sed 's/^/    /'
done

say "(a) $take taken in mid-generation, reserve $reserve, just $vram and the reserve are free"
watch_memory "$WORK/memory"
run -n 600 --vram-reserve 0 >"$WORK/ids" 2>"$WORK/log"
echo "    undisturbed $(grep -E '^decode' "$WORK/log"), peak $(peak_mib "$WORK/memory") MiB"
if hold --vram-leave "$(($(mib "$vram") + $(mib "$reserve") + ${SLACK:-64}))M"; then
    first=$holder
    : >"$WORK/ids"
    run -n 4000 --vram-reserve "$reserve" >"$WORK/ids" 2>"$WORK/log" &
    pid=$!
    for ((i = 0; i < 200; i++)); do if [ -s "$WORK/ids" ]; then break; fi; sleep 0.05; done
    printf '    alone      ' && words_over "$seconds"
    hold --vram "$take" --seconds 100 && printf '    %s taken   ' "$take" && words_over "$seconds"
    release "$holder"
    printf '    free again ' && words_over $((seconds + 3))
    alive=yes
    kill -0 $pid 2>/dev/null || alive=
    pkill -TERM -P $pid 2>/dev/null
    wait $pid
    grep -E '^note|^decode|^reserve|atsi-run:' "$WORK/log" | sed 's/^/    /'
    verdict "it lived until the end" [ -n "$alive" ]
    verdict "it gave back" grep -q 'gave back' "$WORK/log"
    verdict "it took again" grep -q 'took again' "$WORK/log"
    release "$first"
    verdict "the same text as far as rounding goes" same_text
fi

say "(c) a start with 2 GiB less than the plan wants"
if hold --vram-leave "$(($(mib "$vram") - 2048 + $(mib "$reserve")))M"; then
    run -n 20 --vram-reserve "$reserve" >"$WORK/ids" 2>"$WORK/log"
    verdict "it runs" [ -s "$WORK/ids" ]
    grep -E '^note|^load|^decode|atsi-run:' "$WORK/log" | sed 's/^/    /'
    run -n 20 --vram-reserve "$reserve" --strict >"$WORK/ids" 2>"$WORK/log"
    verdict "--strict ends with 1" [ $? -eq 1 ]
    tail -n 1 "$WORK/log" | sed 's/^/    /'
    release "$holder"
fi
say "$n_bad things are not as promised"
[ $n_bad -eq 0 ]
