#!/usr/bin/env bash
# tools/synth_model: models of every family that plan and run, the same bytes from any number of threads, files of full size.
. "$(dirname "$0")/../support/cli.sh"
seq -s ' ' 3 7 200 >"$work/tokens"
narrow="--embd 256 --heads 4 --kv-heads 2 --head-dim 64 --vocab-size 512"

# runs NAME SHAPE OPTIONS...: generated, planned, and run with finite logits that tell tokens apart.
runs() {
    local file=$work/$1.gguf
    "$B/tools/synth_model" "${@:2:1}" "$file" "${@:3}" || return 1
    "$B/atsi-plan" "$file" --vram 0 --ctx 64 -o "$file.atsp" --quiet || return 1
    "$B/atsi-run" "$file.atsp" --device cpu --tokens-in "$work/tokens" -n 0 --logits "$file.logits" --quiet || return 1
    od -An -v -t f4 -w4 "$file.logits" | awk '
        /nan|inf/ { bad = 1; exit }
        { sum += $1; squares += $1 * $1 }
        END { deviation = NR ? sqrt(squares / NR - (sum / NR) ^ 2) : 0
              print NR " logits, standard deviation " deviation
              exit bad || NR == 0 || deviation < 1 || deviation > 4 }'
}
# shellcheck disable=SC2086  # the sizes are separate words
all_families() {
    check "llama" runs llama llama3.1-70b --layers 2 --ff 512 $narrow
    check "llama with experts" runs mixtral mixtral-8x7b --layers 2 --expert-ff 256 $narrow
    check "qwen2" runs qwen2 qwen2.5-7b --layers 2 --ff 512 $narrow --recipe iq4_xs
    check "qwen2moe" runs qwen2moe qwen1.5-moe-a2.7b --layers 2 --experts 8 --expert-ff 256 $narrow
    check "qwen3" runs qwen3 qwen3-14b --layers 2 --ff 512 $narrow --recipe q4_0
    check "qwen3, tied" runs tied qwen3-1.7b --layers 2 --ff 512 $narrow --recipe bf16
    check "qwen3moe" runs qwen3moe qwen3-30b-a3b --layers 3 --experts 16 --expert-ff 256 $narrow --recipe dynamic
    check "qwen3next" runs qwen3next qwen3-next-80b-a3b --layers 4 --experts 16 --expert-ff 256 $narrow
    check "qwen35" runs qwen35 qwen3.5-27b --layers 4 --ff 512 $narrow --recipe q8_0
    check "qwen35moe" runs qwen35moe qwen3.5-122b-a10b --layers 4 --experts 16 --expert-ff 256 $narrow
    check "gemma3" runs gemma3 gemma3-27b --layers 7 --ff 512 $narrow --recipe f16
    check "gpt-oss" runs gptoss gpt-oss-20b --layers 2 --experts 8 --expert-ff 256 $narrow
    check "glm4" runs glm4 glm-z1-9b --layers 2 --ff 512 $narrow --recipe f16
    check "glm4moe" runs glm4moe glm4.5-air --layers 2 --experts 8 --ff 512 --expert-ff 256 $narrow
    check "phi3" runs phi3 phi-4 --layers 2 --ff 512 $narrow --recipe q6_k
    check "phi3, long factors" runs long phi-4-mini --layers 2 --ff 512 $narrow --recipe q8_0
    check "mistral3" runs ministral ministral-3-14b --layers 2 --ff 512 $narrow
    check "llama, heads that do not fill the width" runs small mistral-small-24b --layers 2 --ff 512 $narrow --embd 512
    check "minimax-m2" runs minimax minimax-m2 --layers 2 --experts 8 --expert-ff 256 $narrow
    check "seed_oss" runs seed seed-oss-36b --layers 2 --ff 512 $narrow
    check "ernie4_5" runs ernie ernie-4.5-0.3b --layers 2 --ff 512 $narrow --recipe q8_0
    check "ernie4_5-moe" runs erniemoe ernie-4.5-21b-a3b --layers 2 --experts 8 --ff 512 --expert-ff 256 $narrow --embd 1024
}
all_families

# Rows of 288 have no block of 256: the types of 32 weights take their place.
fallback() {
    "$B/tools/synth_model" qwen3-30b-a3b "$work/rows.gguf" --layers 2 --experts 4 --used 2 --embd 288 --heads 4 --kv-heads 2 \
        --head-dim 64 --expert-ff 96 --vocab-size 300 || return 1
    "$B/tools/gguf_dump" "$work/rows.gguf" >"$work/rows.txt"
    grep -Eq '^token_embd\.weight +Q5_0' "$work/rows.txt" && grep -Eq '^output\.weight +Q8_0' "$work/rows.txt" &&
        grep -Eq '^blk\.0\.attn_output\.weight +Q4_K' "$work/rows.txt" && return 0
    cat "$work/rows.txt"
    return 1
}
check "rows that no block of 256 divides" fallback

same_bytes() {
    local n
    for n in 1 2 5; do
        "$B/tools/synth_model" gpt-oss-20b "$work/t$n.gguf" --layers 1 --vocab-size 4096 --experts 4 --threads "$n" --seed 7 || return 1
    done
    cmp "$work/t1.gguf" "$work/t2.gguf" && cmp "$work/t1.gguf" "$work/t5.gguf"
}
check "the same bytes from 1, 2 and 5 threads" same_bytes
other_seed() {
    "$B/tools/synth_model" gpt-oss-20b "$work/s8.gguf" --layers 1 --vocab-size 4096 --experts 4 --seed 8 || return 1
    ! cmp -s "$work/t1.gguf" "$work/s8.gguf"
}
check "other bytes from another seed" other_seed

# A vocabulary that another file has: its tokenizer keys and as many rows as it has tokens.
given_vocabulary() {
    "$B/tools/synth_model" qwen3-1.7b "$work/v.gguf" --layers 1 --embd 256 --ff 256 --vocab plans/demo.gguf || return 1
    diff <("$B/tools/gguf_dump" plans/demo.gguf | grep '^tokenizer') <("$B/tools/gguf_dump" "$work/v.gguf" | grep '^tokenizer')
}
check "a given vocabulary" given_vocabulary

# Mistral Small 3's 23.57 billion parameters, counted from its published sizes.
mistral_small() {
    "$B/tools/synth_model" mistral-small-24b "$work/24b.gguf" --header-only || return 1
    "$B/atsi-plan" "$work/24b.gguf" --no-weights --vram 0 -o "$work/24b.atsp" --quiet || return 1
    "$B/atsi-plan" --info "$work/24b.atsp" --json | jq -e '.model.n_params == 23572403200 and .model.n_ctx_train == 32768'
}
check "Mistral Small has its parameters" mistral_small

# A 70B model in no space, planned for a machine that is not here.
full_size() {
    "$B/tools/synth_model" llama3.1-70b "$work/70b.gguf" --header-only || return 1
    [ "$(du -k "$work/70b.gguf" | cut -f 1)" -lt 16384 ] || { echo "the file takes space"; return 1; }
    (
        ulimit -d 1048576 # KiB of heap
        ulimit -t 20      # seconds of processor time: a machine that others use, too, is no failure
        "$B/atsi-plan" "$work/70b.gguf" --no-weights --vram 22G --device plans/rtx4090-i7-11700.json -o "$work/70b.atsp" --quiet
    )
}
if grep -qaE '__asan_init|__tsan_init' "$B/atsi-plan"; then
    skip "a 70B header planned without weights" "sanitizers reserve more than the limit"
else
    check "a 70B header planned without weights" full_size
fi

refuses() { # MESSAGE ARGUMENTS...: exit status 2 and one line that holds MESSAGE
    local message=$1 text
    text=$("$B/tools/synth_model" "${@:2}" 2>&1)
    [ $? -eq 2 ] && [ "$(wc -l <<<"$text")" -eq 1 ] && grep -qF -- "$message" <<<"$text" || { echo "$text"; return 1; }
}
check "--help" sh -c "'$B/tools/synth_model' --help | grep -q '^usage: synth_model'"
check "an unknown shape" refuses "no such shape" qwen9 "$work/x.gguf"
check "an unknown recipe" refuses "--recipe q9" qwen3-14b "$work/x.gguf" --recipe q9
check "a bad number" refuses "--layers" qwen3-14b "$work/x.gguf" --layers 9x
check "sizes that do not fit" refuses "do not fit" qwen3-14b "$work/x.gguf" --heads 7
check "experts for a dense model" refuses "no experts" qwen3-14b "$work/x.gguf" --experts 8
finish
