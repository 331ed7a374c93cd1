#!/usr/bin/env bash
# Where atsi-run takes its prompt from, and what it says to what is no prompt.
. "$(dirname "$0")/../support/cli.sh"
plan=$work/demo.atsp
"$B/atsi-plan" plans/demo.gguf --vram 0 --quiet -o "$plan" || exit 1
run() { "$B/atsi-run" "$plan" --device cpu --quiet --temp 0 "$@"; }

# refuses WORD ARGUMENTS...: exit code 2, nothing on standard output, one line that ends with WORD.
refuses() {
    local word=$1 rc
    shift
    run "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    [ $rc -eq 2 ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && [[ $(<"$work/err") == *"$word" ]] && return
    echo "exit code $rc: $(cat "$work/err")"
    return 1
}

printf 'Once upon a time,\n' >"$work/prompt"
same_from_everywhere() {
    local from_file from_pipe from_option
    from_file=$(run -f "$work/prompt" -n 12 --print-ids) || return 1
    from_pipe=$(run -n 12 --print-ids <"$work/prompt") || return 1
    from_option=$(run -p $'Once upon a time,\n' -n 12 --print-ids) || return 1
    [ "$from_file" = "$from_pipe" ] && [ "$from_file" = "$from_option" ]
}
any_bytes() { # a prompt need not be text, and nothing of it is lost
    printf '\xff\xfe\x80a\0b\n\n' >"$work/bytes"
    run -f "$work/bytes" -n 2 >/dev/null && run --detokenize "$(run --tokenize -f "$work/bytes")" | cmp - "$work/bytes"
}
refuses_ids() { # IDS WORD
    printf '%s' "$1" >"$work/ids"
    refuses "$2" --tokens-in "$work/ids" -n 1
}

check "-f, standard input and -p are the same" same_from_everywhere
check "bytes that are no text" any_bytes
check "no such file" refuses "No such file or directory" -f "$work/nothing"
check "a folder" refuses "Is a directory" -f "$work"
check "an empty prompt" refuses "nothing to continue" -p ""
check "an empty standard input" refuses "nothing to continue"
check "a prompt without its option" refuses "a prompt is given with -p TEXT" "Once upon"
check "two prompts" refuses "exclude each other" -p a -f "$work/prompt"
check "a word among the ids" refuses_ids $'1 x2\n3' '"x2" is no token id'
check "a negative id" refuses_ids $'-2\n' '"-2" is no token id'
check "an id over 2^31" refuses_ids "99999999999999999999" "is no token id"
check "an id that the model does not have" refuses_ids "1 4096" "ids 0 to 4095"
before_loading() { # the line stands alone even where the load and the seed are told
    "$B/atsi-run" "$plan" --device cpu -f "$work/nothing" 2>"$work/err"
    [ $? -eq 2 ] && [ "$(wc -l <"$work/err")" -eq 1 ]
}
check "a missing prompt is told before anything is loaded" before_loading
too_long() { seq 20 >"$work/ids" && refuses "the prompt has 20 tokens, the context holds 16" --tokens-in "$work/ids" --ctx 16; }
check "a prompt over the context" too_long
interrupted_at_the_prompt() { # SIGNAL MODE...: while it waits for standard input
    local rc number=$1 writer reader
    shift
    mkfifo "$work/pipe"
    sleep 20 >"$work/pipe" &
    writer=$!
    "$B/atsi-run" "$plan" --device cpu "$@" <"$work/pipe" >/dev/null 2>&1 &
    reader=$!
    sleep 0.5
    kill -"$number" $reader
    wait $reader
    rc=$?
    kill $writer
    rm "$work/pipe"
    [ $rc -eq 130 ] || { echo "exit code $rc"; return 1; }
}
check "Ctrl-C at the prompt" interrupted_at_the_prompt INT -n 1
check "SIGTERM at the prompt" interrupted_at_the_prompt TERM --tokenize
check "no ids" refuses_ids $' \n' "nothing to continue"
finish
