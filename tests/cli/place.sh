#!/usr/bin/env bash
# Placement from the command line: device profiles, budgets, pins, explanations, tables of what would be.
. "$(dirname "$0")/../support/cli.sh"
export XDG_CACHE_HOME=$work/cache
profile=plans/rtx3060-i7-11800h.json

# refuses WORD ARGUMENTS...: exit code 2, WORD in the last line of standard error, no plan.
refuses() {
    local word=$1 rc
    shift
    "$B/atsi-plan" "$@" --quiet -o "$work/refused.atsp" >"$work/out" 2>"$work/err"
    rc=$?
    [ $rc -eq 2 ] && grep -qF -- "$word" "$work/err" && [ ! -e "$work/refused.atsp" ] && return
    echo "exit code $rc: $(cat "$work/err")"
    return 1
}

if ! unpack_model qwen3moe "$work"; then
    skip "placement of a real file" "no test data at $(test_data)"
    finish
    exit
fi
gguf=$work/qwen3moe.f16.gguf
at_3060() { "$B/atsi-plan" "$gguf" --device "$profile" --quiet "$@"; }
json() { jq -e "$1" "$2" >/dev/null; }

check "--objective" refuses "--objective" "$gguf" --objective 2
check "--objective word" refuses "--objective" "$gguf" --objective fast
check "--pin without a side" refuses "--pin" "$gguf" --pin ffn
check "--pin with another side" refuses "--pin" "$gguf" --pin ffn=tpu
check "--pin on the CPU alone" refuses "--pin" "$gguf" --vram 0 --pin ffn=cpu
check "a pattern that matches nothing" refuses "no_such" "$gguf" --device $profile --vram 6G --pin no_such=gpu
check "--device that is not there" refuses "nowhere.json" "$gguf" --device nowhere.json --vram 6G
echo '{"version":1}' >"$work/bad.json"
check "--device that is no profile" refuses "bad.json" "$gguf" --device "$work/bad.json" --vram 6G
check "--device with --save-profile" refuses "--save-profile" "$gguf" --device $profile --save-profile "$work/p.json"
check "a budget over the card" refuses "6 GiB" "$gguf" --device $profile --vram 7G
check "a budget too small names the smallest" refuses "smallest budget that works" "$gguf" --device $profile --vram 1M

smallest() { # the budget that the refusal names works, one MiB less does not
    local mib
    "$B/atsi-plan" "$gguf" --device $profile --vram 1M 2>"$work/err"
    mib=$(sed -n 's/.*(\([0-9]*\)M: .*/\1/p' "$work/err")
    at_3060 --vram "${mib}M" -o "$work/s.atsp" && refuses "smallest" "$gguf" --device $profile --vram "$((mib - 1))M"
}
check "the smallest budget" smallest

explain() { at_3060 --vram 432M --explain --json >"$work/explain.json"; }
check "--explain --json" explain
check "the budget adds up" json '.budget_bytes | .vram == .driver + .compute + .kv + .temporary + .resident + .spare' "$work/explain.json"
check "what is resident fits" json '.budget_bytes as $b | [.units[] | select(.side == "gpu") | .gpu_bytes] | add <= $b.vram' "$work/explain.json"
tied() { # the demo model's head is its embedding: one copy of 1 MiB among 3.5, with both on the GPU
    "$B/atsi-plan" plans/demo.gguf --device "$profile" --vram 6G --explain --json --quiet >"$work/tied.json"
    json '([.units[].side] | unique == ["gpu"]) and .budget_bytes.resident < 3.6 * 1048576' "$work/tied.json"
}
check "a tied matrix counts once" tied
chosen_chunk() { # the best of those that were tried; --chunk is obeyed
    json '.chunk as $c | (.chunks | map(select(.fits)) | min_by(.objective_us) | .chunk) == $c and (.chunks | length) > 1' "$work/explain.json" &&
        at_3060 --vram 432M --chunk 96 --explain --json | jq -e '.chunk == 96 and (.chunks | length) == 1'
}
check "the chunk is chosen, --chunk obeyed" chosen_chunk
terms() { # the fastest of the ways to run a token is what is predicted, and its parts are told
    json '.decode_us as $us | .decode_round | ([.static_us, .streams_us, .shares_us // 1e9] | min) == $us and .gpu_us > 0 and .cpu_us >= 0' "$work/explain.json"
}
check "--explain tells what a token is made of" terms
check "--explain writes no plan" sh -c "! ls *.atsp 2>/dev/null | grep qwen3moe"
check "--explain for people" sh -c "'$B/atsi-plan' '$gguf' --device $profile --vram 432M --explain | grep -q 'blk.0.ffn_gate_exps'"
no_density_of_nothing() { at_3060 --vram 432M --explain | awk '$3 == "0.00" && $8 != "-" { print; bad = 1 } END { exit bad }'; }
check "--explain has no time a MiB where there is no MiB" no_density_of_nothing

"$B/tools/synth_model" qwen3-30b-a3b "$work/big.gguf" --layers 4 --header-only >/dev/null
at_what_if() { "$B/atsi-plan" "$work/big.gguf" --device $profile --vram 4G --what-if --quiet "$@"; }
what_if() { at_what_if --json >"$work/whatif.json"; }
check "--what-if --json" what_if
check "a bigger budget is never slower" json '[.rows[] | select(.n_ctx == 1024) | .decode_us] | length > 2 and . == (sort | reverse)' "$work/whatif.json"
check "each row has a chunk of its own" json '[.rows[].chunk] | unique | length > 1' "$work/whatif.json"
check "the table ends where all is on the GPU" json '[.rows[].vram_bytes] | max == 4 * 1073741824' "$work/whatif.json"
same_chunk() { at_what_if --chunk 512 --json | jq -e '[.rows[].chunk] | unique == [512]'; }
check "--what-if obeys --chunk" same_chunk
no_room() { # the experts are 1.4 GiB
    at_what_if --pin 'exps=gpu' --json | jq -e '[.rows[] | select(.fits) | .vram_bytes] | unique == [2 * 1073741824, 4 * 1073741824]'
}
check "budgets too small for --pin are told" no_room
check "--pin of too much" refuses "takes 1.36 GiB, and --vram 1 GiB leaves" "$work/big.gguf" --device $profile --vram 1G --pin 'exps=gpu'
check "--what-if for people" sh -c "'$B/atsi-plan' '$work/big.gguf' --device $profile --vram 4G --what-if --quiet | grep -q '^4 GiB'"

pinned() { at_3060 --vram 6G --pin '_exps=cpu' --explain --json | jq -e '[.units[] | select(.name | test("_exps")) | .side] | unique == ["cpu"]'; }
check "--pin keeps experts on the CPU" pinned

check "a plan for a device that is elsewhere" at_3060 --vram 432M -o "$work/g.atsp"
check "it verifies" sh -c "'$B/atsi-plan' --verify '$work/g.atsp'"
check "it names device and budget" sh -c "'$B/atsi-plan' --info '$work/g.atsp' --json | jq -e '.device | test(\"3060\")'"
runs_on_cpu() {
    local a b
    "$B/atsi-plan" "$gguf" --vram 0 --quiet -o "$work/c.atsp"
    echo 1 2 3 4 5 >"$work/ids"
    a=$("$B/atsi-run" "$work/c.atsp" --device cpu --tokens-in "$work/ids" -n 8 --temp 0 --print-ids --ignore-eos --quiet)
    b=$("$B/atsi-run" "$work/g.atsp" --device cpu --tokens-in "$work/ids" -n 8 --temp 0 --print-ids --ignore-eos --quiet)
    [ -n "$a" ] && [ "$a" = "$b" ]
}
check "the same text on the CPU whatever the placement" runs_on_cpu

if [ -e /dev/nvidiactl ]; then
    skip "--vram without a GPU" "this machine has a GPU"
else
    check "--vram without a GPU names --device" refuses "--device" "$gguf" --vram 6G
    check "no --vram and no GPU: the CPU" sh -c "'$B/atsi-plan' '$gguf' --quiet -o '$work/n.atsp'"
fi
check "--save-profile" sh -c "'$B/atsi-plan' '$gguf' --vram 0 --save-profile '$work/p.json' --profile-seconds 100 --quiet -o '$work/n.atsp'"
check "what was measured is a profile" refuses "has no GPU" "$gguf" --device "$work/p.json" --vram 6G
check "the machine's profile is kept" sh -c "ls '$work'/cache/atsi/profile-*.json"
no_folder() { ! at_this --save-profile "$work/nowhere/p.json" 2>"$work/err" && grep -q nowhere "$work/err" && [ ! -e "$work/nowhere" ]; }
at_this() { "$B/atsi-plan" "$gguf" --vram 0 --quiet -o "$work/n.atsp" "$@"; }
check "--save-profile makes no folders" no_folder
check "and not measured again" sh -c "! '$B/atsi-plan' '$gguf' --vram 0 --save-profile '$work/p.json' -o '$work/n.atsp' 2>&1 | grep -q profiled"
check "unless asked for" sh -c "'$B/atsi-plan' '$gguf' --vram 0 --save-profile '$work/p.json' --reprofile --profile-seconds 100 -o '$work/n.atsp' 2>&1 | grep -q profiled"
finish
