#!/usr/bin/env bash
# The demo model, which every checkout has: GGUF -> plan -> text without any other test data.
. "$(dirname "$0")/../support/cli.sh"
model=plans/demo.gguf

plan() { "$B/atsi-plan" "$model" --vram 0 -o "$work/demo.atsp"; }
run() { "$B/atsi-run" "$work/demo.atsp" --device cpu --quiet "$@"; }

# reads_as_english FILE: at least 200 bytes, nearly all of them letters, spaces and common marks, with usual words in them.
reads_as_english() {
    local n_bytes n_plain
    n_bytes=$(wc -c <"$1")
    n_plain=$(LC_ALL=C tr -cd "A-Za-z ,.;:!?\"'\n-" <"$1" | wc -c)
    [ "$n_bytes" -ge 200 ] || { echo "only $n_bytes bytes"; return 1; }
    [ $((n_plain * 100)) -ge $((n_bytes * 97)) ] || { echo "$n_plain of $n_bytes bytes are plain text"; return 1; }
    [ "$(grep -owiE 'the|of|and|to|a|was|her|she|he|I' "$1" | wc -l)" -ge 8 ] || { cat "$1"; return 1; }
}

writes_english() { run -p "Once upon a time" -n 96 --seed 1 "$@" >"$work/text" && reads_as_english "$work/text"; }

same_seed_same_text() {
    run -p "Once upon a time" -n 48 --seed 7 >"$work/a" && run -p "Once upon a time" -n 48 --seed 7 >"$work/b" &&
        cmp "$work/a" "$work/b"
}

# Ids and text are two views of one greedy run.
ids_are_the_text() {
    local ids
    ids=$(run -p "It is a truth" -n 32 --temp 0 --ignore-eos --print-ids) &&
        run -p "It is a truth" -n 32 --temp 0 --ignore-eos >"$work/text" &&
        run --detokenize "$ids" >"$work/from_ids" && cmp "$work/text" "$work/from_ids"
}

every_byte_survives() {
    local ids
    # All of ASCII but NUL, and characters of two to four bytes that the training text does not have.
    for ((i = 1; i < 128; i++)); do printf "%b" "\\x$(printf %02x "$i")"; done >"$work/bytes"
    printf 'caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80' >>"$work/bytes"
    ids=$(run --tokenize -f "$work/bytes") && run --detokenize "$ids" >"$work/back" && cmp "$work/bytes" "$work/back"
}

stored_plan_is_current() { "$B/atsi-plan" --verify plans/demo.atsp && "$B/atsi-run" plans/demo.atsp --device cpu -p "She" -n 4; }

if check "the model is planned" plan; then
    check "sampled text reads as English" writes_english
    check "greedy text reads as English" writes_english --temp 0
    check "one seed gives one text" same_seed_same_text
    check "ids decode to the text" ids_are_the_text
    check "tokens hold every byte" every_byte_survives
    check "the stored plan is of this format" stored_plan_is_current
fi
finish
