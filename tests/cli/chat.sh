#!/usr/bin/env bash
# atsi-run --chat: formats, turns, what is read again, interrupts. On the demo model, which has no chat template and no special tokens
# (so a format's marks are text), and on tiny models of the test data, which bring a ChatML template.
. "$(dirname "$0")/../support/cli.sh"
plan=$work/demo.atsp

run() { "$B/atsi-run" "$plan" --device cpu --quiet --temp 0 "$@"; }
chat() { run --chat --chat-format mistral --ignore-eos "$@"; }

# refused WORDS COMMAND...: exit status 2 and one line that has each of WORDS.
refused() {
    local words=$1 status word
    shift
    "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    [ "$status" -eq 2 ] && [ "$(wc -l <"$work/err")" -eq 1 ] || { echo "status $status: $(cat "$work/err")"; return 1; }
    for word in $words; do
        grep -qFe "$word" "$work/err" || { echo "no \"$word\" in: $(cat "$work/err")"; return 1; }
    done
}

# prompt_is TEXT OPTIONS...: the prompt of a first turn is TEXT.
prompt_is() {
    local expected=$1 ids
    shift
    ids=$(run --chat --tokenize "$@") && [ "$(run --detokenize "$ids")" = "$expected" ] || { run --detokenize "$ids"; return 1; }
}

# ---- turns
# An answer that ends no line is not followed by figures on that line.
figures_begin_a_line() {
    "$B/atsi-run" "$plan" --device cpu --temp 0 --chat --chat-format mistral --ignore-eos -p hi -n 3 >"$work/all" 2>&1 &&
        grep -q '^load ' "$work/all"
}
# same_as_from_scratch N: the second answer is what a new run says to the ids of the whole prompt ($work/ids), and N tokens were read for it.
same_as_from_scratch() {
    local n_prompt=$1 ids
    jq -r '.ids | join(" ")' <"$work/second" >"$work/answer"
    ids=$(run --tokens-in "$work/ids" -n 6 --ignore-eos --print-ids) || return 1
    [ "$ids" = "$(cat "$work/answer")" ] || { echo "from scratch $ids, in the chat $(cat "$work/answer")"; return 1; }
    [ "$(jq .n_prompt <"$work/second")" -eq "$n_prompt" ] || { echo "read $(jq .n_prompt <"$work/second"), expected $n_prompt"; return 1; }
}
two_turns() {
    printf 'Hello there\nWhat now?\n' | run --chat "$@" --ignore-eos -n 6 --json >"$work/json" || return 1
    head -n 1 "$work/json" >"$work/first"
    tail -n +2 "$work/json" >"$work/second"
}
# The tokens of the answer are used as they are; only what follows is read, with the answer's last token, which a limit left unread.
only_the_new_is_read() {
    two_turns --chat-format mistral || return 1
    local rest
    rest=$(run --tokenize -p '</s>[INST] What now? [/INST]')
    { run --chat --chat-format mistral --tokenize -p 'Hello there'; jq -r '.ids | join(" ")' <"$work/first"; echo "$rest"; } >"$work/ids"
    same_as_from_scratch $(($(wc -w <<<"$rest") + 1))
}
# after_dropped_thinking N_KEPT: the answer began with "<think>", which its repetition does not have: it is read again. N_KEPT tokens
# can stay, "all" for those before the answer's text.
after_dropped_thinking() {
    local kept=$1 user=$'<|im_start|>user\n' close=$'<|im_end|>\n' reply=$'<|im_start|>assistant\n'
    two_turns --chat-format qwen3-thinking || return 1
    {
        printf '%s' "${user}Hello there$close$reply"
        run --detokenize "$(jq -r '.ids | join(" ")' <"$work/first")"
        printf '%s' "$close${user}What now?$close$reply"$'<think>\n'
    } >"$work/text"
    run --tokenize --parse-special -f "$work/text" >"$work/ids"
    if [ "$kept" = all ]; then
        run --tokenize --parse-special -p "${user}Hello there$close$reply"$'<think>\n' | tr ' ' '\n' >"$work/before"
        kept=$(tr ' ' '\n' <"$work/ids" | cmp "$work/before" - 2>/dev/null | sed 's/.*line //')
        kept=$((kept - 1))
    fi
    same_as_from_scratch $(($(wc -w <"$work/ids") - kept))
}
stop_text_is_forgotten() { # what is behind a stop text is no part of the conversation
    local stop role=$'<|im_start|>user\n' close=$'<|im_end|>\n' reply=$'<|im_start|>assistant\n' first
    first=$(run --chat --chat-format chatml --ignore-eos -n 12 -p "Once upon" --json | jq -r .text)
    stop=${first:$((${#first} / 2)):5} # whatever the model says in the middle of its first answer
    printf 'Once upon\nand\n' | run --chat --chat-format chatml --ignore-eos -n 12 --stop "$stop" --json >"$work/json"
    first=$(head -n 1 "$work/json" | jq -r .text)
    [ -n "$first" ] && [ "$(head -n 1 "$work/json" | jq -r .finish)" = stop ] || { cat "$work/json"; return 1; }
    printf '%s' "${role}Once upon$close$reply$first$close${role}and$close$reply" >"$work/text"
    run -f "$work/text" -n 12 --ignore-eos --stop "$stop" --json | jq -r .text >"$work/expected"
    tail -n 1 "$work/json" | jq -r .text | cmp - "$work/expected"
}
one_line_a_turn() {
    [ "$(printf 'one\n\ntwo' | chat -n 4 --json | wc -l)" -eq 2 ] && [ "$(printf 'one\ntwo\n' | chat -n 4 | wc -l)" -ge 2 ]
}
context_runs_out() {
    yes "and on" | head -n 100 >"$work/lines"
    chat -n 10 <"$work/lines" >"$work/out" 2>"$work/err"
    [ $? -eq 2 ] && grep -q 'context holds 512' "$work/err"
}

# ---- interrupts
# Standard input stays open behind the line, as a terminal's does.
start_chat() {
    : >"$work/text"
    mkfifo "$work/in$1"
    "$B/atsi-run" "$plan" --device cpu --quiet --temp 0 --chat --chat-format mistral --ignore-eos -n "$2" <"$work/in$1" >"$work/text" 2>"$work/err" &
    pid=$!
    exec 3>"$work/in$1"
    echo "Once upon" >&3
    for ((i = 0; i < 300; i++)); do [ -s "$work/text" ] && break; sleep 0.01; done
}
end_chat() {
    exec 3>&-
    wait "$pid"
}
interrupt_ends_the_answer() {
    start_chat 1 480
    kill -INT "$pid"
    sleep 0.5
    kill -0 "$pid" || { echo "the chat ended"; return 1; }
    end_chat || { echo "exit status $?"; return 1; }
    [ "$(wc -c <"$work/text")" -gt 0 ]
}
interrupt_at_the_prompt() {
    start_chat 2 3
    sleep 0.5
    kill -INT "$pid"
    wait "$pid"
    local status=$?
    exec 3>&-
    [ "$status" -eq 130 ] || { echo "exit status $status"; return 1; }
}
sigterm_quits() {
    start_chat 3 480
    kill -TERM "$pid"
    wait "$pid"
    local status=$?
    exec 3>&-
    [ "$status" -eq 130 ] || { echo "exit status $status"; return 1; }
}

tiny() { # tiny NAME TEST N_KEPT
    local model
    if ! unpack_model "$1" "$work"; then skip "$1: a conversation" "no test data"; return; fi
    model=$(find "$work" -name "$1.f16.gguf")
    plan=$work/$1.atsp
    "$B/atsi-plan" "$model" --vram 0 -o "$plan" 2>/dev/null
    check "$1: the format is planned from the template" prompt_is $'<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant' -p hi
    check "$1: an answer that is given back changed is read again" after_dropped_thinking "$2"
}

if ! check "the model is planned" "$B/atsi-plan" plans/demo.gguf --vram 0 -o "$plan"; then finish; exit; fi
check "a model without a template needs --chat-format" refused "--chat-format chatml harmony template" run --chat -p hi
check "an unknown format is refused with the names" refused "--chat-format nope llama3 glm4" run --chat --chat-format nope -p hi
check "--chat and --tokens-in exclude each other" refused "--tokens-in" run --chat --tokens-in x
check "--system without --chat is refused" refused "--system --chat" run --system x -p hi
check "the prompt can be seen" prompt_is '[INST] Be brief.

hi [/INST]' --chat-format mistral --system "Be brief." -p hi
check "only the new part of a turn is read" only_the_new_is_read
check "an answer that is given back changed is read again" after_dropped_thinking all
check "a conversation goes on with what a stop text left" stop_text_is_forgotten
check "figures behind one turn begin a line" figures_begin_a_line
check "a line is a turn" one_line_a_turn
check "a full context is told" context_runs_out
check "an interrupt ends the answer, not the chat" interrupt_ends_the_answer
check "an interrupt at the prompt quits" interrupt_at_the_prompt
check "SIGTERM quits" sigterm_quits
tiny qwen3 all
tiny qwen35 0 # a recurrent state cannot go back: all is read again
finish
