#!/usr/bin/env bash
# The same greedy tokens at every budget, on a simulated card that refuses what goes beyond it.
. "$(dirname "$0")/../support/cli.sh"
profile=plans/rtx3060-i7-11800h.json
seq 1 40 >"$work/ids"
generate() { "$B/atsi-run" "$1" --device "$2" --tokens-in "$work/ids" -n 8 --temp 0 --print-ids --ignore-eos --quiet; }

same_at_every_budget() { # MODEL
    local gguf=$work/$1.f16.gguf wanted least more got
    "$B/atsi-plan" "$gguf" --vram 0 --kv-type f32 --quiet -o "$work/cpu.atsp" || return 1
    wanted=$(generate "$work/cpu.atsp" cpu) && [ -n "$wanted" ] || return 1
    least=$("$B/atsi-plan" "$gguf" --device $profile --vram 1M 2>&1 | sed -n 's/.*(\([0-9]*\)M: .*/\1/p')
    for more in 0 1 3 8 64; do
        "$B/atsi-plan" "$gguf" --device $profile --vram "$((least + more))M" --kv-type f32 --quiet -o "$work/gpu.atsp" || return 1
        got=$(generate "$work/gpu.atsp" "sim:$profile") || return 1
        [ "$got" = "$wanted" ] || { echo "$least + $more MiB: $got instead of $wanted"; return 1; }
    done
}
for model in llama31 gemma3 qwen3moe gptoss qwen35moe; do
    if unpack_model $model "$work"; then check "$model" same_at_every_budget $model
    else skip "$model" "no test data at $(test_data)"; fi
done
finish
