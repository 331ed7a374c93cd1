#!/usr/bin/env bash
# atsi-run --lookup: the same text, guessed or not, wherever units are; what it says; and where nothing can be guessed.
. "$(dirname "$0")/../support/cli.sh"
profile=plans/rtx3060-i7-11800h.json
sim="sim:$profile"
"$B/atsi-plan" plans/demo.gguf --device "$profile" --vram 6G --pin "^blk.[01]=cpu" --quiet -o "$work/demo.atsp" || exit 1 # something on either side
"$B/tools/synth_model" qwen3-14b "$work/wide.gguf" --layers 2 --embd 1024 --heads 8 --kv-heads 2 --head-dim 64 --ff 4096 --vocab-size 512 >/dev/null || exit 1
"$B/atsi-plan" "$work/wide.gguf" --device "$profile" --vram 6G --ctx 512 --pin "ffn=cpu" --quiet -o "$work/wide.atsp" || exit 1 # units that travel
"$B/tools/synth_model" gpt-oss-20b "$work/experts.gguf" --layers 2 --embd 256 --heads 4 --kv-heads 2 --head-dim 64 --experts 8 --used 2 --expert-ff 256 --vocab-size 512 >/dev/null || exit 1
"$B/atsi-plan" "$work/experts.gguf" --device "$profile" --vram 6G --ctx 512 --chunk 16 --pin "ffn=cpu" --quiet -o "$work/experts.atsp" || exit 1
seq 20 36 >"$work/ids"
seq 20 36 >>"$work/ids"

run() { # PLAN OPTIONS...
    "$B/atsi-run" "$work/$1.atsp" --isa reference --ignore-eos --quiet "${@:2}"
}
# same PLAN OPTIONS...: what is written with guesses and without; some of them are right where the text repeats itself.
same() {
    run "$@" >"$work/plain" && run "$@" --lookup 7 --stats >"$work/guessed" 2>"$work/log" && cmp "$work/plain" "$work/guessed" && return
    cat "$work/log"
    return 1
}
right() { grep -qE '^lookup +[0-9]+ tokens guessed in [0-9]+ rounds, [1-9][0-9]* of them right' "$work/log" || { cat "$work/log"; return 1; }; }
text=(-p "Once upon a time there was" -n 80)
ids=(--tokens-in "$work/ids" --print-ids -n 24)

for device in cpu "$sim"; do
    check "greedy, $device" same demo --device "$device" --temp 0 "${text[@]}"
    check "some are right, $device" right
    check "sampled, $device" same demo --device "$device" --temp 0.7 --seed 3 --repeat-penalty 1.05 "${text[@]}"
    check "units that travel, $device" same wide --device "$device" --temp 0 "${ids[@]}"
done
for switch in "--policy none" "--no-async" "--no-split-rows" "--reschedule-in-turn" "--chunk 5"; do
    # shellcheck disable=SC2086
    check "$switch" same wide --device "$sim" --temp 0 $switch "${ids[@]}"
done
# Every second layer keeps a ring of 128 + 16 positions.
check "experts and rings on the CPU" same experts --device cpu --temp 0 --tokens-in "$work/ids" --print-ids -n 240
experts_beside_a_card() {
    run experts --device "$sim" --temp 0 "${ids[@]}" >"$work/plain" &&
        "$B/atsi-run" "$work/experts.atsp" --isa reference --ignore-eos --device "$sim" --temp 0 --lookup 4 "${ids[@]}" >"$work/guessed" 2>"$work/log" &&
        cmp "$work/plain" "$work/guessed" && grep -q '^note: --lookup: ' "$work/log"
}
check "experts beside a card: one line, and nothing is guessed" experts_beside_a_card

# ---- ends
check "a stop text" same demo --device cpu --temp 0 "${text[@]}" --stop "was" --stop "I "
check "one token" same demo --device cpu --temp 0 -p "Once upon a time there was" -n 1
check "two" same demo --device cpu --temp 0 -p "Once upon a time there was" -n 2
check "a full context" same wide --device cpu --temp 0 --tokens-in "$work/ids" --print-ids --ctx 52 # to its last position
ends_by_context() { [ "$(wc -w <"$work/guessed")" -eq 19 ]; }
check "all of it is used" ends_by_context
eos() { # with the token that ends a text allowed
    "$B/atsi-run" plans/demo.atsp --isa reference --quiet --device cpu --temp 1.2 --seed "$1" -p "The end" -n 120 --json "${@:2}" | jq -c '[.ids, .finish]'
}
eos_is_found() {
    local seed
    for seed in 1 2 3; do [ "$(eos $seed)" = "$(eos $seed --lookup 5)" ] || return 1; done
}
check "the token that ends a text" eos_is_found

# ---- conversations: what was guessed and wrong is not in the next turn
conversation() {
    printf 'say it\nsay it again\nsay it again\n' |
        "$B/atsi-run" "$work/demo.atsp" --isa reference --device "$1" --quiet --temp 0 --chat --chat-format mistral --ignore-eos -n 24 "${@:2}"
}
for device in cpu "$sim"; do
    same_turns() { [ "$(conversation "$device")" = "$(conversation "$device" --lookup 7)" ]; }
    check "turns, $device" same_turns
done

# ---- options
refused() { run demo -p a -n 1 --lookup "$1" 2>"$work/err"; [ $? -eq 2 ] && grep -q -- '--lookup' "$work/err"; }
check "too many" refused 8
one_by_one() { "$B/atsi-run" "$work/demo.atsp" --device cpu --temp 0 -p Once -n 5 --chunk 1 --lookup 7 2>&1 >/dev/null | grep -q '^note: --lookup: .*chunks of one token'; }
check "chunks of one token: the line says so" one_by_one
check "none" same demo --device cpu --temp 0 -p "Once" -n 5 --lookup 0
