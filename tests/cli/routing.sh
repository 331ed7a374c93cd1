#!/usr/bin/env bash
# Routing statistics: the same counts wherever units run, and what the planner says of them.
. "$(dirname "$0")/../support/cli.sh"
profile=plans/rtx3060-i7-11800h.json

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
finish
