#!/usr/bin/env bash
# Whole models under random placements on the simulated device: each unit on either side, any budget, chunk, policy and number of
# threads. Logits of the prompt and greedy tokens are those of the CPU alone, bit by bit (reference kernels on both sides).
#   ATSI_SOAK_PLACEMENTS=N   placements a model (default 2); number k is the same everywhere, and first with ATSI_SOAK_FIRST=k
#   PLACEMENT_MODELS="qwen3 gemma3"
. "$(dirname "$0")/../support/cli.sh"
profile=plans/rtx3060-i7-11800h.json
n_placements=${ATSI_SOAK_PLACEMENTS:-2}
first=${ATSI_SOAK_FIRST:-1}
models=${PLACEMENT_MODELS:-llama31 llama_tied qwen2 qwen3 gemma3 qwen3moe gptoss glm4 qwen3next qwen35 qwen35moe}

n_ctx=128
plan() { "$B/atsi-plan" "$1" --ctx $n_ctx --kv-type "$2" --quiet "${@:3}" >"$work/plan.log" 2>&1; }
run() { # run PLAN LOGITS OPTIONS... -> greedy ids
    "$B/atsi-run" "$1" --isa reference --tokens-in "$work/ids" -n 6 --temp 0 --ignore-eos --print-ids --logits "$2" --quiet "${@:3}" 2>"$work/run.log"
}

# draw ITEM...: one of them, into `drawn` (a subshell would draw the same number again).
draw() { shift $((RANDOM % $#)); drawn=$1; }

# wanted GGUF KV: what the CPU alone gives, into $work/wanted.GGUF.KV (logits) and .ids; made once.
wanted() {
    local to
    to=$work/wanted.$(basename "$1").$2
    [ -e "$to.ids" ] && return
    plan "$1" "$2" --vram 0 -o "$work/cpu.atsp" || { cat "$work/plan.log"; return 1; }
    run "$work/cpu.atsp" "$to" --device cpu >"$to.new" && [ -s "$to.new" ] && mv "$to.new" "$to.ids" && return
    cat "$work/run.log"
    return 1
}

# units GGUF: the names of its units.
units() { "$B/atsi-plan" "$1" --device $profile --vram 6G --ctx $n_ctx --explain --json --quiet | jq -r '.units[].name'; }

# pinned GGUF KV OPTIONS...: the plan with the drawn sides, or with as many units on the GPU as the drawn budget holds.
pinned() {
    local pins=()
    [ ${#on_gpu[@]} -eq 0 ] || pins+=(--pin "^($(IFS='|'; echo "${on_gpu[*]}"))\$=gpu")
    [ ${#on_cpu[@]} -eq 0 ] || pins+=(--pin "^($(IFS='|'; echo "${on_cpu[*]}"))\$=cpu")
    plan "$1" "$2" --device $profile "${@:3}" "${pins[@]}" -o "$work/gpu.atsp"
}

# one NUMBER GGUF: a placement drawn with this number.
one() {
    local number=$1 gguf=$2 on_gpu=() on_cpu=() percent kv budget chunk policy threads name reference drawn
    RANDOM=$number
    draw 0 20 50 80 100 && percent=$drawn
    for name in "${names[@]}"; do
        if ((RANDOM % 100 < percent)); then on_gpu+=("$name"); else on_cpu+=("$name"); fi
    done
    draw f32 f16 q8_0 && kv=$drawn
    draw $((least + 1)) $((least + 3)) $((least + 8)) 6144 && budget=$drawn
    draw 1 5 16 512 && chunk=$drawn
    draw paper paper fifo none && policy=$drawn
    draw 1 2 3 && threads=$drawn
    wanted "$gguf" "$kv" || return 1
    reference=$work/wanted.$(basename "$gguf").$kv
    # A budget too small for what is pinned is refused: then the same sides with all of the card.
    pinned "$gguf" "$kv" --vram "${budget}M" || pinned "$gguf" "$kv" --vram 6G || { cat "$work/plan.log"; return 1; }
    run "$work/gpu.atsp" "$work/got" --device "sim:$profile" --chunk "$chunk" --policy "$policy" --threads "$threads" \
        >"$work/got.ids" && cmp "$reference.ids" "$work/got.ids" && cmp "$reference" "$work/got" && return
    echo "placement $number of $gguf: --kv-type $kv, $budget MiB, --chunk $chunk --policy $policy --threads $threads"
    echo "on the GPU: ${on_gpu[*]}"
    echo "got $(cat "$work/got.ids"), wanted $(cat "$reference.ids"); $(cat "$work/run.log")"
    return 1
}

all_of() { # all_of MODEL
    local files=("$work/$1".*.gguf) names=() least number
    mapfile -t names < <(units "${files[0]}")
    least=$("$B/atsi-plan" "${files[0]}" --device $profile --ctx $n_ctx --vram 1M 2>&1 | sed -n 's/.*(\([0-9]*\)M: .*/\1/p')
    if [ ${#names[@]} -eq 0 ] || [ -z "$least" ]; then
        echo "no units or no smallest budget"
        return 1
    fi
    for ((number = first; number < first + n_placements; number++)); do
        one "$number" "${files[number % ${#files[@]}]}" || return 1
    done
}

for model in $models; do
    if unpack_model "$model" "$work"; then
        jq -r '.prompts[0][:32] | map(tostring) | join(" ")' "$work/$model.json" >"$work/ids"
        check "$model: $n_placements random placements" all_of "$model"
    else
        skip "$model: random placements" "no test data at $(test_data)/tiny-models"
    fi
    rm -f "$work/$model".* "$work/wanted".*
done
finish
