#!/usr/bin/env bash
# Behaviour of atsi-run on the demo model: limits, stop texts, interrupts, closed pipes, broken weights, JSON.
. "$(dirname "$0")/../support/cli.sh"
model=plans/demo.gguf
plan=$work/demo.atsp

run() { "$B/atsi-run" "$plan" --device cpu --quiet --temp 0 "$@"; }

# exits STATUS WORDS COMMAND...: the command ends with STATUS and its message, one line, has each of WORDS.
exits() {
    local expected=$1 words=$2 status word
    shift 2
    "$@" >"$work/out" 2>"$work/err"
    status=$?
    [ "$status" -eq "$expected" ] || { echo "exit status $status, expected $expected: $(cat "$work/err")"; return 1; }
    [ "$(wc -l <"$work/err")" -le 1 ] || { echo "more than a line:"; cat "$work/err"; return 1; }
    for word in $words; do
        grep -qFe "$word" "$work/err" || { echo "no \"$word\" in: $(cat "$work/err")"; return 1; }
    done
}

# ---- limits
ends_at_the_context() {
    run -p "Once" --ctx 8 --ignore-eos --json >"$work/json" && jq -e '.finish == "length" and .n_prompt + .n_generated == 9' "$work/json"
}
tells_the_full_context() { "$B/atsi-run" "$plan" --device cpu -p Once --ctx 8 --ignore-eos 2>&1 >/dev/null | grep -q 'the context is full'; }
long_prompt() {
    head -c 600 /dev/zero | tr '\0' '~' >"$work/long"
    exits 2 "600 512" run -f "$work/long" -n 1
}
threads_are_cut() {
    "$B/atsi-run" "$plan" --device cpu --temp 0 -p Once -n 2 --threads 1000000 >"$work/text" 2>"$work/err" &&
        grep -q '^--threads 1000000: ' "$work/err"
}
one_processor() { taskset -c 0 timeout 60 "$B/atsi-run" "$plan" --device cpu --quiet --temp 0 -p Once -n 2 --threads 8; }

# ---- text
# stops_at TEXT: with that stop text the output is what comes before it.
stops_at() {
    local whole
    run -p "It is a truth" -n 40 --ignore-eos >"$work/whole" && run -p "It is a truth" -n 40 --ignore-eos --stop "$1" >"$work/cut"
    whole=$(cat "$work/whole"; echo x)
    whole=${whole%x}
    [[ $whole == *"$1"* ]] || { echo "\"$1\" is not in the text: $whole"; return 1; }
    printf '%s' "${whole%%"$1"*}" | cmp - "$work/cut"
}
# Pieces of the text itself, at every place and of lengths that begin and end inside tokens.
stops_anywhere() {
    local text at
    text=$(run -p "It is a truth" -n 12 --ignore-eos | tr '\n' ' ')
    for ((at = 0; at + 5 < ${#text}; at += 3)); do stops_at "${text:at:5}" || return 1; done
}
# The beginning of a stop text at the very end is not held back for ever.
half_a_stop_text() {
    run -p "It is a truth" -n 12 --ignore-eos >"$work/whole"
    run -p "It is a truth" -n 12 --ignore-eos --stop "$(tail -c 3 "$work/whole")@" >"$work/cut" && cmp "$work/whole" "$work/cut"
}
json_is_json() {
    run -p 'say "x"' -n 24 --json >"$work/json" &&
        jq -e '(.text | type) == "string" and (.ids | length) == .n_generated and .finish == "length"' "$work/json"
}
json_text_is_the_text() {
    run -p "Once" -n 24 --json | jq -j .text >"$work/from_json" && run -p "Once" -n 24 >"$work/text" && cmp "$work/text" "$work/from_json"
}
nothing_to_generate() { [ -z "$(run -p Once -n 0)" ]; }

# ---- signals and pipes
# interrupted SIGNAL: soon after the signal (a step takes no longer than it took to the first text) the run ends with 130, and the text
# so far was written.
interrupted() {
    local pid status start=$SECONDS first
    : >"$work/text"
    # The reference kernels take seconds for the whole text: it is not over before the signal.
    "$B/atsi-run" "$plan" --device cpu --isa reference --quiet --temp 0 -p Once --ignore-eos >"$work/text" 2>"$work/err" &
    pid=$!
    for ((i = 0; i < 6000; i++)); do [ -s "$work/text" ] && break; sleep 0.01; done
    first=$((SECONDS - start))
    kill "-$1" "$pid"
    start=$SECONDS
    wait "$pid"
    status=$?
    [ "$status" -eq 130 ] || { echo "exit status $status"; return 1; }
    [ $((SECONDS - start)) -le $((2 + 2 * first)) ] || { echo "took $((SECONDS - start)) s"; return 1; }
    [ -s "$work/text" ] || { echo "no text"; return 1; }
    [ ! -s "$work/err" ] || { cat "$work/err"; return 1; }
}
closed_pipe() {
    { run -p Once -n 400 --ignore-eos; echo $? >"$work/status"; } 2>"$work/err" | head -c 10 >/dev/null
    [ "$(cat "$work/status")" = 0 ] && [ ! -s "$work/err" ]
}

# ---- broken weights
# broken TENSOR BYTES UNIT: with those bytes at the beginning of the tensor's data, the run says where it broke.
broken() {
    local offset
    offset=$("$B/tools/gguf_dump" "$model" | sed -n "s/^$1 .* bytes at //p")
    cp "$model" "$work/broken.gguf" && chmod u+w "$work/broken.gguf"
    printf '%b' "$2" | dd of="$work/broken.gguf" bs=1 seek="$offset" conv=notrunc status=none
    "$B/atsi-plan" "$work/broken.gguf" --vram 0 -o "$work/broken.atsp" 2>/dev/null || return 1
    exits 1 "non-finite token $3" "$B/atsi-run" "$work/broken.atsp" --device cpu --quiet --temp 0 -p "Once upon" -n 5 || return 1
    [ ! -s "$work/out" ] || return 1
    exits 1 "non-finite token $3" "$B/atsi-run" "$work/broken.atsp" --device cpu --quiet --temp 0 -p "Once upon" -n 0
}

if ! check "the model is planned" "$B/atsi-plan" "$model" --vram 0 -o "$plan"; then finish; exit; fi
check "a context of 0 is refused" exits 2 "--ctx 0" run -p Once --ctx 0
check "a negative context is refused" exits 2 "--ctx -1" run -p Once --ctx -1
check "a context above the plan's is refused" exits 2 "--ctx 1000000000 512" run -p Once --ctx 1000000000
check "generation ends at the context" ends_at_the_context
check "and says why" tells_the_full_context
check "a prompt that does not fit is refused with both counts" long_prompt
check "--threads 0 is the default" run -p Once -n 1 --threads 0
check "negative threads are refused" exits 2 "--threads -1" run -p Once --threads -1
check "too many threads are cut, and said" threads_are_cut
check "more threads than processors end all the same" one_processor
check "stop texts anywhere" stops_anywhere
check "half a stop text at the end is given out" half_a_stop_text
check "--json prints JSON" json_is_json
check "--json has the same text" json_text_is_the_text
check "-n 0 generates nothing" nothing_to_generate
check "an interrupt ends the run and keeps the text" interrupted INT
check "so does SIGTERM" interrupted TERM
check "a closed pipe ends the run quietly" closed_pipe
check "a full disk is told" bash -c "! '$B/atsi-run' '$plan' --device cpu --quiet -p Once -n 3 >/dev/full 2>'$work/err' && grep -q 'standard output' '$work/err'"
check "NaN in the scale of a weight" broken blk.3.ffn_down.weight '\0\0176' blk.3.ffn_down
check "NaN in a norm" broken blk.2.ffn_norm.weight '\0\0\0300\0177' blk.2
check "NaN in the last norm" broken output_norm.weight '\0\0\0300\0177' output
finish
