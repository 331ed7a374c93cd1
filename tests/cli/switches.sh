#!/usr/bin/env bash
# Switches of planner and runner that only change who computes what when: the logits are those of the CPU, bit by bit.
. "$(dirname "$0")/../support/cli.sh"
profile=plans/rtx3060-i7-11800h.json
seq 1 40 >"$work/ids"
generate() { "$B/atsi-run" "$@" --tokens-in "$work/ids" -n 12 --temp 0 --print-ids --ignore-eos --quiet --isa reference; }
plan() { "$B/atsi-plan" "$work/$1.f16.gguf" --device $profile --vram "$2" --kv-type f32 --quiet -o "$work/p.atsp" "${@:3}"; }

same() { # MODEL PLANNER-OPTIONS RUNNER-OPTIONS
    local least
    least=$("$B/atsi-plan" "$work/$1.f16.gguf" --device $profile --vram 1M 2>&1 | sed -n 's/.*(\([0-9]*\)M: .*/\1/p')
    # shellcheck disable=SC2086 # lists of options
    plan "$1" "$((least + 2))M" $2 || return 1
    generate "$work/p.atsp" --device cpu --logits "$work/cpu.logits" >"$work/cpu.ids" || return 1
    # shellcheck disable=SC2086
    generate "$work/p.atsp" --device sim:$profile --logits "$work/sim.logits" $3 >"$work/sim.ids" || return 1
    cmp "$work/cpu.logits" "$work/sim.logits" && cmp "$work/cpu.ids" "$work/sim.ids"
}

for model in qwen3 qwen3moe; do
    if ! unpack_model $model "$work"; then
        skip "$model" "no test data at $(test_data)"
        continue
    fi
    for placement in tensor tensor-static layer; do check "$model: --placement $placement" same $model "--placement $placement" ""; done
    for switches in "--no-async" "--no-split-rows" "--no-reschedule" "--reschedule-in-turn --reschedule-threshold 0.01 --reschedule-interval 1" \
        "--policy none" "--policy paper --no-split-rows" "--policy none --no-async" "--no-repeats"; do
        check "$model: $switches" same $model "" "$switches"
    done
done

# A model whose experts are large enough to be resident one by one.
"$B/tools/synth_model" qwen3-30b-a3b "$work/moe.gguf" --layers 4 --embd 256 --heads 4 --kv-heads 2 --head-dim 64 --experts 32 --used 4 --expert-ff 256 \
    --vocab-size 1000 >/dev/null 2>&1
least=$("$B/atsi-plan" "$work/moe.gguf" --device $profile --vram 1M --ctx 256 2>&1 | sed -n 's/.*(\([0-9]*\)M: .*/\1/p')
"$B/atsi-plan" "$work/moe.gguf" --device $profile --vram "$((least + 6))M" --ctx 256 --experts single --routing none --quiet -o "$work/e.atsp"
"$B/atsi-run" "$work/e.atsp" --device cpu --tokens-in "$work/ids" -n 40 --temp 0 --print-ids --ignore-eos --quiet --isa reference --logits "$work/cpu.logits" >"$work/cpu.ids"
same_experts() { # SWITCHES: the same logits while experts are resident one by one
    # shellcheck disable=SC2086 # lists of options
    "$B/atsi-run" "$work/e.atsp" --device sim:$profile --tokens-in "$work/ids" -n 40 --temp 0 --print-ids --ignore-eos --isa reference --stats \
        --logits "$work/sim.logits" $1 >"$work/sim.ids" 2>"$work/stats"
    cmp "$work/cpu.logits" "$work/sim.logits" && cmp "$work/cpu.ids" "$work/sim.ids" &&
        grep -q '^resident [1-9][0-9]* of [1-9][0-9]* experts one by one, .* lately, ' "$work/stats"
}
for switches in "" "--no-exchange" "--no-large-exchange" "--no-async" "--no-split-rows" "--policy none" "--chunk 7"; do
    check "experts one by one: $switches" same_experts "$switches"
done
stays() { same_experts --no-exchange && grep -q '; 0 exchanged' "$work/stats"; }
check "--no-exchange exchanges nothing" stays
prompt_counts() { same_experts "" && grep -q '^exchange [1-9][0-9]* large ones ahead of a token: [1-9][0-9]* experts, ' "$work/stats"; }
check "what a prompt wants becomes resident behind it" prompt_counts
not_large() { # N OPTIONS: no large exchange for N tokens
    "$B/atsi-run" "$work/e.atsp" --device sim:$profile --tokens-in "$work/ids" -n "$1" --temp 0 --print-ids --ignore-eos --stats "${@:2}" 2>"$work/stats" >/dev/null &&
        grep -q '^resident ' "$work/stats" && ! grep '^exchange ' "$work/stats"
}
for n in 1 2 9 16; do check "not for $n tokens" not_large $n; done
check "not with --no-large-exchange" not_large 40 --no-large-exchange

tells_decisions() { # a row for each decision that was taken over, and the names of its columns
    generate "$work/p.atsp" --device sim:$profile --decisions "$work/d.csv" >"$work/sim.ids" && head -n 1 "$work/d.csv" | grep -q '^time_s,verdict,reason,use,' &&
        grep -q '^[0-9.]*,taken over,start,' "$work/d.csv" && [ "$(awk -F, '{ print NF }' "$work/d.csv" | sort -u)" = 18 ]
}
[ ! -e "$work/p.atsp" ] || check "--decisions" tells_decisions

refused() { ! "$B/atsi-run" "$work/p.atsp" "$@" -p x 2>"$work/why" && grep -q -- "$1" "$work/why"; }
check "a threshold that is none" refused --reschedule-threshold 0
check "an interval that is none" refused --reschedule-interval x
finish
