#!/usr/bin/env bash
# The whole way GGUF -> plan -> logits and greedy tokens, against transformers' results for the tiny models.
#
# Bounds. float32 files with a float32 cache: 5e-4 at every position (hybrids 1e-3), what float32 sums in another order
# give. float16 files: rms 1e-2. int8 activations on q8_0, q4_0 and mxfp4 weights: a value is off by at most 1/254 of its
# block's largest, uniform, so about 0.45 % rms of a typical value each matmul; over the 2 L + 1 residual writes of these
# models that is 0.02-0.06 of a logit's standard deviation of 2: rms 0.12 is allowed, a missing term costs over 0.2.
#
# A router makes such noise larger without limit: a near tie that falls the other way changes its row and, through attention, later
# ones. Noise of 1e-7 in the norms of the tiny gpt-oss in mxfp4 (8 seeds) moves the median row's rms between 0.16 and 0.29, noise of
# 3e-4, what a float16 cache brings on a card, between 0.16 and 0.33. So a file with experts is judged twice: with its own choice
# by the median row (f16 0.01, gpt-oss mxfp4 0.35, others 0.2), which sees gross faults, and with every expert in use, where nothing
# is chosen and the bounds above hold for all rows. The reference of the second is the float32 file on the CPU, which the first checks tie to
# transformers.
#   REFERENCE_DEVICE=cpu|cuda|sim:…   REFERENCE_PLAN_OPTIONS=…   REFERENCE_MODELS="qwen3 gemma3"
. "$(dirname "$0")/../support/cli.sh"
device=${REFERENCE_DEVICE:-cpu}
models=${REFERENCE_MODELS:-llama31 llama_tied qwen2 qwen3 gemma3 qwen3moe gptoss glm4 qwen3next qwen35 qwen35moe}

# device_options GGUF OPTIONS...: where the plan puts the units. Nothing on a device for the CPU; on a simulated one as much as the smallest
# budget and a quarter of the weights hold, so that both sides compute and units move.
device_options() {
    local profile=${device#sim:} least
    if [ -n "${REFERENCE_PLAN_OPTIONS:-}" ] || [ "$profile" = "$device" ]; then
        echo "--vram 0 ${REFERENCE_PLAN_OPTIONS:-}"
        return
    fi
    least=$("$B/atsi-plan" "$1" --device "$profile" --vram 1M "${@:2}" 2>&1 | sed -n 's/.*(\([0-9]*\)M: .*/\1/p')
    echo "--device $profile --vram $((least + $(stat -c %s "$1") / 4194304))M"
}

plan() { # plan GGUF OPTIONS... -> $work/m.atsp
    # shellcheck disable=SC2046
    "$B/atsi-plan" "$1" $(device_options "$@") "${@:2}" -o "$work/m.atsp" >"$work/plan.log" 2>&1 || { cat "$work/plan.log"; return 1; }
    [ "${device#sim:}" = "$device" ] || "$B/atsi-plan" --info "$work/m.atsp" --json | jq -e '[.program.units[].backend] | index("gpu")' >/dev/null ||
        { echo "nothing is on the device"; return 1; }
}

run() { "$B/atsi-run" "$work/m.atsp" --device "$device" --temp 0 --quiet "$@"; }

figure() { sed -n "s/.*\\b$1=\\([^ /]*\\).*/\\1/p" <<<"$2"; }

# within WHAT FIGURE BOUND LINE: the figure in a line of compare_logits is at most BOUND. Its worst value is shown at the end.
within() {
    local value
    value=$(figure "$2" "$4")
    echo "$1 $2 $value" >>"$work/figures"
    awk -v a="$value" -v b="$3" 'BEGIN { exit !(a <= b) }' || { echo "$2 over $3: $4"; return 1; }
}

# worst_figures: one line of everything that was measured of the model $m.
worst_figures() {
    awk -v m="$m" '{ k = $1 " " $2; if (!(k in worst)) { order[++n] = k; worst[k] = $3 } else if ($3 + 0 > worst[k] + 0) worst[k] = $3 }
        END { for (i = 1; i <= n; i++) line = line (i > 1 ? ", " : "") order[i] " " worst[order[i]]; print "# " m ": " line }' "$work/figures"
    rm -f "$work/figures"
}

n_prompts() { jq '.prompts | length' "$1"; }

# run_prompts JSON: each prompt of it in one chunk; logits in $work/logits.I, the greedy tokens after it in $work/greedy.I.
run_prompts() {
    local n i
    n=$(n_prompts "$1") || return 1
    for ((i = 0; i < n; i++)); do
        jq -r ".prompts[$i] | map(tostring) | join(\" \")" "$1" >"$work/ids"
        run --tokens-in "$work/ids" --logits "$work/logits.$i" -n "$(jq ".greedy[$i] | length" "$1")" --ignore-eos --print-ids >"$work/greedy.$i" || return 1
    done
}

# logits_match JSON LOGITS FIGURE BOUND: of every prompt, against LOGITS, which holds them one after the other.
logits_match() {
    local n i skip=0 rows line
    n=$(n_prompts "$1") || return 1
    for ((i = 0; i < n; i++)); do
        rows=$(jq ".prompts[$i] | length" "$1")
        line=$("$B/tools/compare_logits" "$2" "$work/logits.$i" --vocab "$vocab" --skip "$skip" --rows "$rows") || return 1
        within "$type" "$3" "$4" "prompt $i: $line" || return 1
        skip=$((skip + rows))
    done
}

# greedy_matches JSON [MARGIN]: tokens equal up to the first place where the reference's own margin is at most 0.05.
greedy_matches() {
    local margin=${2:-0.05} n i
    n=$(n_prompts "$1") || return 1
    for ((i = 0; i < n; i++)); do
        jq -e --arg got "$(cat "$work/greedy.$i")" --argjson safe "$margin" ".greedy[$i] as \$want | .greedy_margin[$i] as \$margin
            | (\$got | split(\" \") | map(tonumber)) as \$ours
            | ([range(\$want | length) | select(\$ours[.] != \$want[.])][0]) as \$first
            | \$first == null or \$margin[\$first] <= \$safe" "$1" >/dev/null ||
            { echo "prompt $i: got $(cat "$work/greedy.$i"), wanted $(jq -c ".greedy[$i]" "$1")"; return 1; }
    done
}

# same_logits JSON FIGURE BOUND OPTIONS...: the last prompt gives the same however it is cut: the same bytes, but on a card and with AMX, whose
# kernels for few and for many rows sum in different orders, within the bound.
same_logits() {
    local whole line
    whole=$work/logits.$(($(n_prompts "$1") - 1))
    run --tokens-in "$work/ids" --logits "$work/cut" -n 0 "${@:4}" || return 1
    [ "$device" = cuda ] || grep -qw amx_bf16 /proc/cpuinfo || { cmp "$whole" "$work/cut"; return; }
    line=$("$B/tools/compare_logits" "$whole" "$work/cut" --vocab "$vocab") || return 1
    within "$type-cut" "$2" "$3" "$line"
}

has_experts() { [[ $1 == *moe || $1 == gptoss || $1 == qwen3next ]]; }

# value_at GGUF KEY: where the value of a u32 key stands: behind the key's name and its type, which takes four bytes.
value_at() {
    local at
    at=$(LC_ALL=C grep -abom 1 "$2" "$1" | head -n 1 | cut -d: -f1)
    [ -n "$at" ] && echo $((at + ${#2} + 4))
}

# use_every_expert GGUF: its router chooses all of them.
use_every_expert() {
    local from to
    if ! from=$(value_at "$1" .expert_count) || ! to=$(value_at "$1" .expert_used_count); then echo "no count of experts"; return 1; fi
    dd if="$1" bs=1 skip="$from" count=4 status=none | dd of="$1" bs=1 seek="$to" conv=notrunc status=none
}

# every_expert GGUF BOUND: its first prompt with every expert in use, against the same in float32 on the CPU.
every_expert() {
    local all=$work/every.gguf wide=$work/every.f32.gguf line options
    cp "$1" "$all" && use_every_expert "$all" && "$B/tools/gguf_widen" "$all" "$wide" &&
        "$B/atsi-plan" "$wide" --vram 0 --kv-type f32 --quiet -o "$work/every.atsp" || return 1
    jq -r '.prompts[0] | map(tostring) | join(" ")' "$work/$m.json" >"$work/ids"
    "$B/atsi-run" "$work/every.atsp" --device cpu --temp 0 --quiet --tokens-in "$work/ids" --logits "$work/every.logits" -n 0 && plan "$all" || return 1
    for options in "" "--chunk 5"; do
        # shellcheck disable=SC2086
        run --tokens-in "$work/ids" --logits "$work/logits" -n 0 $options || return 1
        line=$("$B/tools/compare_logits" "$work/every.logits" "$work/logits" --vocab "$vocab") || return 1
        within "$type-every-expert" rms "$2" "$options $line" || return 1
    done
}

check_f32() {
    local type=f32 bound=5e-4 json=$work/$m.json
    case $m in qwen3next | qwen35 | qwen35moe) bound=1e-3 ;; esac
    "$B/tools/gguf_widen" "$work/$m.f16.gguf" "$work/$m.f32.gguf" || { not_ok "$m: widened"; return; }
    if ! check "$m f32: planned" plan "$work/$m.f32.gguf" --kv-type f32; then return; fi
    check "$m f32: runs" run_prompts "$json"
    check "$m f32: logits within $bound" logits_match "$json" "$work/$m.logits.f32" max_abs "$bound"
    check "$m f32: greedy tokens" greedy_matches "$json"
    check "$m f32: uneven chunks give the same" same_logits "$json" max_abs "$bound" --chunk 7
    check "$m f32: token by token gives the same" same_logits "$json" max_abs "$bound" --chunk 1
}

check_f16() {
    local type=f16 margin=0.05 rms=rms json=$work/$m.json
    if has_experts "$m"; then margin=0.1 rms=rms_median; fi
    check "$m f16: planned" plan "$work/$m.f16.gguf"
    check "$m f16: runs" run_prompts "$json"
    check "$m f16: logits $rms within 0.01" logits_match "$json" "$work/$m.logits.f32" $rms 0.01
    check "$m f16: greedy tokens" greedy_matches "$json" $margin
    has_experts "$m" && check "$m f16: every expert in use, logits rms within 0.01" every_expert "$work/$m.f16.gguf" 0.01
}

check_quantised() { # TYPE
    local type=$1 rms=rms bound=0.12 json=$work/$m.$1.json
    if has_experts "$m"; then rms=rms_median bound=0.2; fi
    if [ "$m" = gptoss ]; then bound=0.35; fi
    check "$m $1: planned" plan "$work/$m.$1.gguf"
    check "$m $1: runs" run_prompts "$json"
    check "$m $1: logits $rms within $bound" logits_match "$json" "$work/$m.$1.logits.f32" $rms $bound
    check "$m $1: uneven chunks give the same" same_logits "$json" $rms $bound --chunk 5
    has_experts "$m" && check "$m $1: every expert in use, logits rms within 0.12" every_expert "$work/$m.$1.gguf" 0.12
}

check_model() { # of $m
    local vocab type
    vocab=$(jq .vocab "$work/$m.json") || { not_ok "$m: jq reads the test data"; return; }
    check_f32
    check_f16
    for type in q8_0 q4_0 mxfp4; do
        if [ -e "$work/$m.$type.gguf" ]; then check_quantised $type; fi
    done
    worst_figures
}

for m in $models; do
    if unpack_model "$m" "$work"; then check_model; else skip "$m" "no test data at $(test_data)/tiny-models"; fi
    rm -f "$work/$m".* "$work"/{every,logits,greedy}.*
done
finish
