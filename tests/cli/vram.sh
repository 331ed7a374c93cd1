#!/usr/bin/env bash
# The card's memory from the command line, on a simulated card: a budget that moves during the generation, a card that is too full at the
# start, pinned memory that cannot be had.
. "$(dirname "$0")/../support/cli.sh"
profile=plans/rtx3060-i7-11800h.json
plan=$work/m.atsp

# Small, with matrices that are large enough to move, and slow enough to watch with the reference kernels.
make_model() {
    "$B/tools/synth_model" qwen3-1.7b "$work/m.gguf" --layers 2 --embd 512 --heads 8 --kv-heads 4 --head-dim 64 \
        --ff 2048 --vocab-size 1024 --ctx 1024
}
make_plan() { "$B/atsi-plan" "$work/m.gguf" --device $profile --vram 1G --chunk 32 --quiet -o "$plan" "$@"; }
# run DEVICE-WORDS OPTIONS...: ids on standard output, what is said in $work/err.
run() {
    local words=$1
    shift
    "$B/atsi-run" "$plan" --device "sim:$profile$words" --isa reference --temp 0 -p "Once upon a time" --ignore-eos \
        --print-ids "$@" 2>"$work/err"
}
same_ids() { cmp "$work/wanted" "$work/ids" || { cat "$work/err"; return 1; }; }

# says TEXT: waits until the run has said it.
says() {
    for ((i = 0; i < 600; i++)); do
        grep -qF "$1" "$work/err" && return
        sleep 0.05
    done
    echo "never said \"$1\": $(cat "$work/err")"
    return 1
}
moves_and_returns() {
    local pid status=0
    echo 0 >"$work/others"
    "$B/atsi-run" "$plan" --device "sim:$profile,others=$work/others" --isa reference --temp 0 -p "Once upon a time" \
        --ignore-eos --print-ids -n 1000 >"$work/ids" 2>"$work/err" &
    pid=$!
    for ((i = 0; i < 600; i++)); do [ -s "$work/ids" ] && break; sleep 0.02; done
    echo 5.48G >"$work/others"
    says "gave back" || status=1
    echo 5G >"$work/others"
    says "took again" || status=1
    kill -INT $pid # the text so far is complete
    wait $pid
    [ $? -eq 130 ] || { cat "$work/err"; return 1; }
    run "" -n "$(wc -w <"$work/ids")" >"$work/calm"
    cmp "$work/calm" "$work/ids" && return $status
}
quiet_moves() {
    echo 5.6G >"$work/others"
    run ",others=$work/others" -n 12 --quiet >"$work/ids" && same_ids && [ ! -s "$work/err" ]
}
full_at_the_start() {
    echo 5.45G >"$work/others"
    run ",others=$work/others" -n 12 >"$work/ids" && same_ids && [ "$(grep -c 'resident units stay on the CPU' "$work/err")" = 1 ]
}
strict() {
    run ",others=$work/others" -n 12 --strict >"$work/ids"
    [ $? -eq 1 ] && [ ! -s "$work/ids" ] && [ "$(wc -l <"$work/err")" = 1 ] && grep -q -- '--strict: .*MiB.*--vram [0-9]*M' "$work/err"
}
strict_with_room() { run "" -n 12 --strict >"$work/ids" && same_ids; }
no_room_at_all() {
    echo 6G >"$work/others"
    run ",others=$work/others" -n 12 >"$work/ids"
    [ $? -eq 1 ] && [ ! -s "$work/ids" ] && grep -q 'the card has 0 MiB free.*--device cpu' "$work/err"
}
reserve_off() {
    echo 5.45G >"$work/others"
    run ",others=$work/others" -n 12 --vram-reserve 0 >"$work/ids" && same_ids && ! grep -q "stay on the CPU" "$work/err"
}
# A chat that waits for its user gives memory back, and answers afterwards.
idle_chat() {
    local status=0
    echo 0 >"$work/others"
    mkfifo "$work/lines"
    "$B/atsi-run" "$plan" --device "sim:$profile,others=$work/others" --chat --chat-format mistral --temp 0 -n 4 \
        --ignore-eos <"$work/lines" >"$work/answer" 2>"$work/err" &
    exec 9>"$work/lines"
    sleep 0.5
    echo 5.48G >"$work/others"
    says "gave back" || status=1
    [ ! -s "$work/answer" ] || status=1
    echo hello >&9
    exec 9>&-
    wait $! && [ -s "$work/answer" ] && return $status
    cat "$work/err"
    return 1
}
# refuses WORD OPTIONS...
refuses() {
    local word=$1
    shift
    "$B/atsi-run" "$plan" -p Once -n 1 "$@" 2>"$work/err"
    [ $? -eq 2 ] && grep -qF -- "$word" "$work/err"
}
without_registering() { run ",no-register" -n 12 >"$work/ids" && same_ids && grep -q "copied to pinned memory" "$work/err"; }
hardly_pinned() { run ",no-register,pinned=3M" -n 12 >"$work/ids" && same_ids && grep -q "MiB of the weights on the CPU are pinned" "$work/err"; }
# A prompt in chunks of five, and what is left.
through_the_ring() {
    run "$1" -n 6 --chunk 5 --stats >"$work/ids" && cmp "$work/wanted" "$work/ids" || { cat "$work/err"; return 1; }
    grep -q "^note: .*: of a prompt the others travel through a pinned ring of .* a token may take .* of a prompt .*" "$work/err" &&
        grep -q "^ring .* MiB travelled through" "$work/err" && return
    cat "$work/err"
    return 1
}
no_ring() {
    run ",no-register,pinned=1M" -n 6 --chunk 5 --stats >"$work/ids" && cmp "$work/wanted" "$work/ids" &&
        grep -q "^note: .*: the GPU cannot help with the others" "$work/err" && ! grep -q "^ring " "$work/err"
}
interrupted_in_the_ring() {
    local pid
    "$B/atsi-run" "$plan" --device "sim:$profile,no-register,pinned=4M" --isa reference --temp 0 --chunk 32 --ignore-eos \
        -p "$(yes "Once upon a time" | head -60)" -n 4 >"$work/ids" 2>"$work/err" &
    pid=$!
    sleep 0.7
    kill -INT $pid
    wait $pid
    [ $? -eq 130 ] || { cat "$work/err"; return 1; }
}
plain_text() { run "" -n 12 >"$work/ids" && same_ids; }

if ! check "a model is made" make_model || ! check "and planned" make_plan; then finish; exit; fi
run "" -n 12 >"$work/wanted"
check "units leave and return while others use the card, and the text is the same" moves_and_returns
check "--quiet says nothing of it" quiet_moves
check "a card that is too full keeps what fits, said in one line" full_at_the_start
check "--strict refuses it with the numbers" strict
check "--strict with room" strict_with_room
check "no room for what has to be there" no_room_at_all
check "--vram-reserve 0 uses the last byte" reserve_off
check "a chat that waits gives memory back" idle_chat
check "--vram-reserve of no size" refuses "--vram-reserve" --vram-reserve lots
check "an unknown word for the simulated card" refuses "no-nothing" --device "sim:$profile,no-nothing"
check "a plan with units on the CPU" make_plan --pin ffn=cpu
check "the same text" plain_text
check "no pinned file: the weights are copied, and that is said" without_registering
check "no pinned memory: that is said" hardly_pinned
run "" -n 6 --chunk 5 >"$work/wanted"
for words in ",no-register,pinned=4M" ",no-register,pinned=3M"; do
    check "a prompt goes through the pinned ring ($words), the text is the same" through_the_ring $words
done
check "no room for a ring either: that is said" no_ring
check "an interrupted prompt ends at once" interrupted_in_the_ring
finish
