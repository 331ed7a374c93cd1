#!/usr/bin/env bash
# What atsi-run writes beside its text, logits and traces, and what it says when they cannot be written.
. "$(dirname "$0")/../support/cli.sh"
plan=$work/demo.atsp
profile=plans/rtx3060-i7-11800h.json
"$B/atsi-plan" plans/demo.gguf --device "$profile" --vram 6G --pin "^blk.0=cpu" --quiet -o "$plan" || exit 1 # something on either side
run() { "$B/atsi-run" "$plan" --quiet --temp 0 -p "Once upon a time" -n 4 "$@"; }

# fails WORD ARGUMENTS...: exit code 1 and one line with WORD.
fails() {
    local word=$1 rc
    shift
    run "$@" >"$work/out" 2>"$work/err"
    rc=$?
    [ $rc -eq 1 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -qF -- "$word" "$work/err" && return
    echo "exit code $rc: $(cat "$work/err")"
    return 1
}
logits() { # a row of 4096 float32 for each token of the prompt
    local n
    n=$(run --tokenize | wc -w) && run --logits "$work/logits" >/dev/null && [ "$(stat -c %s "$work/logits")" -eq $((n * 4096 * 4)) ]
}
trace() { # DEVICE LANES: spans with times, on those lanes at least
    run --device "$1" --trace "$work/trace.json" >/dev/null &&
        jq -e --argjson lanes "$2" '[.traceEvents[] | select(.ph == "X")] |
            all(.dur >= 0 and .ts >= 0) and ($lanes - [.[].tid] == [])' "$work/trace.json"
}

check "--logits" logits
check "--trace on the CPU" trace cpu '[1]'
check "--trace of a device" trace "sim:$profile" '[1, 3]'
trace_of_transfers() { # a plan whose units travel
    "$B/tools/synth_model" qwen3-14b "$work/wide.gguf" --layers 2 --embd 1024 --heads 8 --kv-heads 2 --head-dim 64 --ff 4096 --vocab-size 512 >/dev/null &&
        "$B/atsi-plan" "$work/wide.gguf" --device "$profile" --vram 6G --ctx 512 --pin "ffn=cpu" --quiet -o "$work/wide.atsp" &&
        seq 64 >"$work/wide.ids" &&
        "$B/atsi-run" "$work/wide.atsp" --quiet --temp 0 --tokens-in "$work/wide.ids" --chunk 40 --print-ids -n 1 --device "sim:$profile" \
            --trace "$work/trace.json" >/dev/null &&
        jq -e '[.traceEvents[] | select(.ph == "X" and .tid == 4)] | length > 0 and all(.dur > 0 and (.name | test("ffn"))) and
            (group_by(.name) | all(length == 2))' "$work/trace.json" # once a chunk, also the shorter one
}
check "--trace of transfers" trace_of_transfers
no_room() { # OPTION: a limit instead of a full disk. The older file stays, and nothing stands beside it.
    local said rc
    mkdir -p "$work/outputs"
    echo older >"$work/outputs/x"
    said=$(ulimit -f 0; run --device "sim:$profile" "$1" "$work/outputs/x" 2>&1 >/dev/null)
    rc=$?
    [ $rc -eq 1 ] && [ "$said" = "atsi-run: cannot write $work/outputs/x: File too large" ] &&
        [ "$(cat "$work/outputs/x")" = older ] && [ "$(ls -A "$work/outputs")" = x ] && return
    echo "exit code $rc: $said"
    return 1
}
for option in --logits --trace --decisions; do
    check "$option on a full disk" fails "cannot write /dev/full: No space left" --device "sim:$profile" $option /dev/full
    check "$option in no folder" fails "No such file" --device cpu $option "$work/nowhere/x"
    check "$option where no more fits" no_room $option
done
to_a_pipe() { run --device cpu --trace /dev/stdout --print-ids | cat | grep '"traceEvents"'; }
check "--trace into a pipe" to_a_pipe
never_ran() { # OPTION: of a run that fails before its first round nothing replaces an older file
    echo older >"$work/outputs/x"
    ! run --device cpu --isa nonsense "$1" "$work/outputs/x" 2>"$work/err" && grep -q 'unknown instruction set' "$work/err" &&
        [ "$(cat "$work/outputs/x")" = older ]
}
for option in --logits --trace --decisions; do check "$option of a run that never ran" never_ran $option; done
one_name() { # OPTION PATH: refused, and nothing written
    ! run --device cpu --logits "$work/one" "$1" "$2" 2>"$work/err" && grep -q "have the same name, $2" "$work/err" && [ ! -e "$work/one" ]
}
check "two files under one name" one_name --trace "$work/one"
check "a file under the plan's" one_name --decisions "$plan"
check "two to a device" run --device cpu --logits /dev/null --trace /dev/null
without_streams() { # started without standard streams: none of its text gets into a file
    run --device cpu --logits "$work/logits" >/dev/null
    run --device cpu --logits "$work/closed" <&- >&- 2>&-
    cmp "$work/logits" "$work/closed" || [ ! -e "$work/closed" ]
}
check "without standard streams" without_streams
lonely_pipe() { # one interrupt is enough while nobody reads
    mkfifo "$work/lonely"
    timeout -k 5 -s INT 1 "$B/atsi-run" "$plan" --quiet --device cpu --temp 0 -p Once -n 4 --trace "$work/lonely"
    [ $? -eq 124 ]
}
check "an interrupt while a pipe waits for its reader" lonely_pipe
stats() { # DEVICE PATTERN: --stats says it on standard error, and nothing of it on standard output
    local plain
    plain=$(run --device "$1") && [ "$(run --device "$1" --stats 2>"$work/err")" = "$plain" ] && grep -qE "$2" "$work/err"
}
begins_a_line() { "$B/atsi-run" "$plan" --device cpu --temp 0 -p "Once upon a time" -n 4 2>&1 | grep -q '^load '; }
fails_on_a_line() { { run --device cpu --logits /dev/full 2>&1 || true; } | grep -q "^atsi-run: "; }

cut_short() { # the plan is emptied while a loaded chat waits for its first line
    local rc reader
    cp "$plan" "$work/cut.atsp"
    mkfifo "$work/lines"
    "$B/atsi-run" "$work/cut.atsp" --device cpu --chat --chat-format chatml -n 4 <"$work/lines" >"$work/out" 2>"$work/err" &
    reader=$!
    exec 3>"$work/lines"
    for _ in $(seq 1000); do grep -q '^seed' "$work/err" && break; sleep 0.01; done # told when everything is loaded
    : >"$work/cut.atsp"
    echo a >&3
    exec 3>&-
    wait $reader
    rc=$?
    [ $rc -eq 1 ] && tail -n 1 "$work/err" | grep -q 'cut short' && return
    echo "exit code $rc: $(cat "$work/err")"
    return 1
}

check "a plan that is cut short in mid-run" cut_short
check "--stats on the CPU" stats cpu '^memory .*weights [0-9.]+ MiB'
check "--stats of a device" stats "sim:$profile" '^rounds .*units promoted'
check "figures begin a line behind the text" begins_a_line
check "so does a failure" fails_on_a_line
finish
