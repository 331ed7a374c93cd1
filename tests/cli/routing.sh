#!/usr/bin/env bash
# Routing statistics: the same counts wherever units run, and what the planner says of them.
. "$(dirname "$0")/../support/cli.sh"
profile=plans/rtx3060-i7-11800h.json

# A model whose experts are large enough to be placed one by one: counted on the CPU, planned again by what that has left, run on the
# simulated device.
moe=$work/synthetic.gguf
"$B/tools/synth_model" qwen3-30b-a3b "$moe" --layers 3 --experts 16 --expert-ff 256 --embd 256 --heads 4 --kv-heads 2 \
    --head-dim 64 --vocab-size 512 2>/dev/null
seq 1 9 300 | tr '\n' ' ' >"$work/prompt"
answer() { "$B/atsi-run" "$1" --tokens-in "$work/prompt" -n 24 --temp 0 --ignore-eos --print-ids --isa reference "${@:2}"; }
again() { "$B/atsi-plan" "$moe" --device $profile --ctx 64 "$@"; }
least=$(again --vram 1M -o "$work/none.atsp" 2>&1 | grep -o '([0-9]*M' | tr -d '(M')
"$B/atsi-plan" "$moe" --vram 0 --ctx 64 --quiet -o "$work/counted.atsp"
nothing_yet() { ! again --vram $((least + 1))M -o "$work/single.atsp" 2>&1 | grep 'routing statistics'; }
check "without statistics none are spoken of" nothing_yet
keeps() {
    answer "$work/counted.atsp" --quiet --stats >"$work/wanted" 2>"$work/err" && answer "$work/counted.atsp" --quiet --stats >"$work/ids" 2>&1 &&
        grep -q "kept for atsi-plan, in $XDG_CACHE_HOME/atsi/routing-" "$work/err" &&
        jq -e '.routers | length == 3 and all(.n_tokens == 2 * (34 + 23))' "$XDG_CACHE_HOME"/atsi/routing-*.json
}
check "--stats keeps the counts of all runs" keeps
single() { # single MIB-MORE: planned with them, the same answer wherever experts are
    again --vram $((least + $1))M --experts single -o "$work/single.atsp" 2>"$work/err" &&
        grep -q '^routing statistics of 114 tokens, from .*(--routing none' "$work/err" &&
        grep -q '^  experts .* MiB ' "$work/err" &&
        "$B/atsi-plan" --info "$work/single.atsp" | grep -q '^experts .* resident one by one' &&
        answer "$work/single.atsp" --quiet --device "sim:$profile" | cmp "$work/wanted" -
}
check "planned by them and run: the same answer" single 1
check "with a larger budget" single 2
ignored() { ! again --vram $((least + 1))M --routing none -o "$work/single.atsp" 2>&1 | grep 'routing statistics'; }
check "--routing none" ignored
unsound() {
    local file
    file=$(echo "$XDG_CACHE_HOME"/atsi/routing-*.json) && cp "$file" "$work/kept.json" && echo '{' >"$file" &&
        again --vram $((least + 1))M -o "$work/unsound.atsp" 2>"$work/err" && cp "$work/kept.json" "$file" &&
        grep -q '^note: routing statistics are left out: .*routing-.*json: ' "$work/err" && ! grep -q '^routing statistics of' "$work/err"
}
check "unsound statistics are left out, and told of" unsound
unwritable() {
    touch "$work/file" && XDG_CACHE_HOME=$work/file answer "$work/counted.atsp" --quiet --stats 2>"$work/err" | cmp "$work/wanted" - &&
        grep -q '^note: the counts of experts are not kept' "$work/err"
}
check "a folder that cannot be written is no failure" unwritable
by_unit() { again --vram $((least + 1))M --experts unit -o "$work/unit.atsp" --quiet && ! "$B/atsi-plan" --info "$work/unit.atsp" | grep '^experts'; }
check "--experts unit" by_unit
refuses() { # refuses WORDS... : exit status 2, with one line that has the last word
    again --vram $((least + 1))M -o "$work/none.atsp" "${@:1:$#-1}" >"$work/out" 2>"$work/err"
    [ $? -eq 2 ] && grep -q -- "${@: -1}" "$work/err"
}
check "--experts single with nothing to place so" refuses --experts single --pin '_exps=cpu' 'placed by itself'
check "--experts single with a static placement" refuses --experts single --placement layer 'not with --placement'
check "an unknown way" refuses --experts all 'not auto, unit or single'

if ! unpack_model qwen3moe "$work" || ! unpack_model qwen3 "$work"; then
    skip "routing statistics" "no test data at $(test_data)"
    finish
    exit
fi
gguf=$work/qwen3moe.f16.gguf
seq 1 40 | tr '\n' ' ' >"$work/ids"
run() { "$B/atsi-run" "$1" --tokens-in "$work/ids" -n 9 --temp 0 --ignore-eos --print-ids --isa reference --chunk 16 "${@:2}"; }

"$B/atsi-plan" "$gguf" --vram 0 --ctx 64 --quiet -o "$work/cpu.atsp"
"$B/atsi-plan" "$gguf" --device $profile --vram 6G --ctx 64 --pin '_exps=cpu' --quiet -o "$work/mixed.atsp"
"$B/atsi-plan" "$gguf" --device $profile --vram 6G --ctx 64 --quiet -o "$work/gpu.atsp"
check "--save-routing" run "$work/cpu.atsp" --quiet --save-routing "$work/cpu.json"
counts() { # 40 tokens of prompt and the 8 generated ones that were fed back, n_used choices each
    jq -e '.routers | length > 0 and all(.n_tokens == 48 and (.counts | add) == 48 * .n_used and .n_reused > 0)' "$1"
}
check "every token is counted" counts "$work/cpu.json"
same() { # same PLAN: on the simulated device
    run "$1" --device "sim:$profile" --quiet --save-routing "$work/sim.json" && cmp "$work/cpu.json" "$work/sim.json"
}
check "the same with experts on the CPU and routers on the GPU" same "$work/mixed.atsp"
check "the same with all of it on the GPU" same "$work/gpu.atsp"
stats() { run "$work/cpu.atsp" --quiet --stats 2>&1 >/dev/null | grep -q '^experts  .* the hottest eighth gets'; }
check "--stats tells of the experts" stats
no_experts() {
    "$B/atsi-plan" "$work/qwen3.f16.gguf" --vram 0 --ctx 64 --quiet -o "$work/dense.atsp"
    run "$work/dense.atsp" --quiet --save-routing "$work/none.json" 2>"$work/err"
    [ $? -eq 2 ] && grep -q 'without experts' "$work/err" && [ ! -e "$work/none.json" ]
}
check "a model without experts has none" no_experts
in_vain() { # PROGRAM ARGUMENTS: fails at once with one line
    "$B/$1" "${@:2}" >"$work/out" 2>"$work/err"
    [ $? -eq 1 ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q "$work/nowhere/x: No such file" "$work/err"
}
check "no text is made for --save-routing in no folder" in_vain \
    atsi-run "$work/cpu.atsp" --tokens-in "$work/ids" -n 9 --ignore-eos --save-routing "$work/nowhere/x"
check "no placement is made for a plan in no folder" in_vain \
    atsi-plan "$gguf" --device $profile --vram 6G --ctx 64 -o "$work/nowhere/x"

explain() { "$B/atsi-plan" "$1" --device $profile --vram 6G --ctx 64 --explain --quiet --routing "${@:2}"; }
facts() {
    explain "$gguf" "$work/cpu.json" --json |
        jq -e '.routing as $r | $r.eighth_share > 0 and $r.eighth_share <= 1 and $r.reused_share > 0 and
               $r.chunk_share > 0 and $r.chunk_share <= 1'
}
check "--routing with --explain" facts
check "for people" sh -c "'$B/atsi-plan' '$gguf' --device $profile --vram 6G --ctx 64 --explain --quiet --routing '$work/cpu.json' | grep -q '^routing '"
other() { explain "$work/qwen3.f16.gguf" "$work/cpu.json" >"$work/out" 2>"$work/err"; [ $? -eq 2 ] && grep -q 'no experts' "$work/err"; }
check "--routing for a model without experts" other
broken() {
    sed 's/"n_used"/"used"/' "$work/cpu.json" >"$work/broken.json"
    explain "$gguf" "$work/broken.json" >"$work/out" 2>"$work/err"
    [ $? -eq 2 ] && grep -q 'broken.json: routers\[0\]: ' "$work/err"
}
check "a broken file is told" broken
pipe() {
    mkfifo "$work/pipe" && timeout 20 "$B/atsi-plan" "$gguf" --device $profile --vram 6G --ctx 64 --quiet --routing "$work/pipe" -o "$work/x.atsp" 2>"$work/err"
    [ $? -eq 2 ] && grep -q 'pipe: expected a regular file' "$work/err"
}
check "a pipe is not waited for" pipe
finish
