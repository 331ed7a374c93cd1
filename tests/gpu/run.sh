#!/usr/bin/env bash
# Checks and measures the CUDA part on a machine with a card, in one go.
#   tests/gpu/run.sh [WORD...]       B: build folder, OUT: where logs go (default: $B)
#     check              tests/gpu/test_cuda: every kernel and type against the CPU's reference (needs libcmocka)
#     sanitize           the same on small shapes under compute-sanitizer: memcheck, racecheck, initcheck
#                        TESTS="[a-m]* matrices": only tests of such names, here and in check
#     bench, or a word that bench_cuda knows: tests/bench/bench_cuda
#     models, placements, promotions, experts, sanitize-models: whole programs on tiny models of every family (tests/gpu/models.sh)
#     races              promotions of MODELS_FAMILIES (default: one dense, one with experts) under compute-sanitizer's racecheck
#     reference          the tiny models of the test data against transformers' logits, all on the card and at a small budget
# Without words: check, models, bench. NO_BUILD=1 takes the programs of $B as they are.
set -u
read -ra tests <<<"${TESTS:-}"
cd "$(dirname "$0")/../.." || exit 1
B=${B:-build} OUT=${OUT:-${B:-build}}
export B
mkdir -p "$OUT"
[ $# -gt 0 ] || set -- check models bench
failed=0
trap 'failed=1' TERM # what has been found is still shown

# A step by name: its output in $OUT/NAME.log, the last lines shown, of TAP those that say more than that a test has passed.
step() {
    local name=$1 started=$SECONDS
    shift
    echo "== $name"
    "$@" >"$OUT/$name.log" 2>&1 || { failed=1; echo "FAILED: $name"; }
    grep -v '^ok [0-9]* - [^#]*$' "$OUT/$name.log" | tail -n "${LINES_SHOWN:-60}"
    echo "   $((SECONDS - started)) s"
}

need() { [ -n "${NO_BUILD:-}" ] || make -s -j"$(nproc)" B="$B" "$@" || exit 1; }

# REFERENCE_JOBS models side by side, two threads each. Opening and closing the card is what takes the time, and many programs that
# close it at once hold each other up: six took more than 7 s each, one alone less than one (H200, driver 580).
reference() { # OPTIONS of atsi-plan
    local m log models=${REFERENCE_MODELS:-llama31 llama_tied qwen2 qwen3 gemma3 qwen3moe gptoss glm4 qwen3next qwen35 qwen35moe}
    log=$(mktemp -d)
    for m in $models; do
        REFERENCE_MODELS=$m REFERENCE_DEVICE=${REFERENCE_DEVICE:-cuda} REFERENCE_PLAN_OPTIONS=$1 bash tests/cli/reference.sh >"$log/$m" 2>&1 &
        while [ "$(jobs -rp | wc -l)" -ge "${REFERENCE_JOBS:-2}" ]; do wait -n; done
    done
    wait
    awk '/^ok/ && !/# SKIP/ { passed++; next } /^not ok/ { failed++ } /^1\.\./ { next } { print }
        END { print passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 || !passed }' "$log"/*
    local status=$?
    rm -rf "$log"
    return $status
}

for what; do
    case $what in
    check)
        need "$B/gpu/test_cuda"
        step check "$B/gpu/test_cuda" "${tests[@]}" ;;
    sanitize) # one test asks for memory that there is not, so refused calls do not count
        need "$B/gpu/test_cuda"
        for tool in memcheck racecheck initcheck; do
            step "$tool" compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 "$B/gpu/test_cuda" small "${tests[@]}"
        done ;;
    models) need all; step models tests/gpu/models.sh budgets ;;
    placements | promotions | experts) need all; step "$what" tests/gpu/models.sh "$what" ;;
    races)
        need all
        MODELS_UNDER="compute-sanitizer --tool racecheck --report-api-errors no --error-exitcode 9 --log-file /dev/stderr" \
            MODELS_TYPES=mixed MODELS_FAMILIES=${MODELS_FAMILIES:-qwen3-1.7b qwen3-30b-a3b} ATSI_SOAK_RUNS=${ATSI_SOAK_RUNS:-3} \
            step races tests/gpu/models.sh promotions ;;
    sanitize-models) need all; step sanitize-models tests/gpu/models.sh sanitize ;;
    reference)
        need all
        profile=${MODELS_PROFILE:-plans/h200-xeon-16.json}
        step reference reference "--device $profile --threads 2 --vram 2G"
        step reference-small reference "--device $profile --threads 2 --vram ${SMALL_VRAM:-620M}" ;;
    bench)
        need "$B/bench/bench_cuda"
        LINES_SHOWN=200 step bench "$B/bench/bench_cuda" ;;
    *)
        need "$B/bench/bench_cuda"
        step "bench-$what" "$B/bench/bench_cuda" "$what" ;;
    esac
done
exit $failed
