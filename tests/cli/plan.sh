#!/usr/bin/env bash
# atsi-plan from outside: exit codes, options, bad files, plans that cannot be written.
. "$(dirname "$0")/../support/cli.sh"

# expect RC WORD COMMAND...: the exit code, WORD on standard error, one line there, nothing on standard output.
expect() {
    local rc=$1 word=$2 got
    shift 2
    "$@" >"$work/out" 2>"$work/err"
    got=$?
    [ "$got" -eq "$rc" ] || { echo "exit code $got, expected $rc"; cat "$work/err"; return 1; }
    [ ! -s "$work/out" ] || { echo "standard output is not empty"; return 1; }
    [ "$(wc -l <"$work/err")" -eq 1 ] || { echo "not one line:"; cat "$work/err"; return 1; }
    grep -qF -- "$word" "$work/err" || { echo "no \"$word\" in: $(cat "$work/err")"; return 1; }
}
plan() { "$B/atsi-plan" "$@"; }

# ---- the command line ------------------------------------------------------------------------------------------------
check "--help" sh -c "'$B/atsi-plan' --help | grep -q 'usage: atsi-plan'"
check "--version" sh -c "'$B/atsi-plan' --version | grep -q '^atsi-plan [0-9]'"
check "no model" expect 2 "no model" plan
check "unknown option" expect 2 "--frobnicate" plan m.gguf --frobnicate
check "option without its value" expect 2 "--ctx needs a value" plan m.gguf --ctx
check "two models" expect 2 "second input" plan a.gguf b.gguf
check "two modes" expect 2 "exclude" plan --info a --solve b
check "--ship without weights" expect 2 "--no-weights" plan m.gguf --ship --no-weights
for value in 0 -1 abc 1.5 1e3 99999999999 "" " 4"; do check "--ctx '$value'" expect 2 "--ctx" plan m.gguf --ctx "$value"; done
for value in -1 "6 G" 1e9 "" G 6GB 99999999999999999999; do check "--vram '$value'" expect 2 "--vram" plan m.gguf --vram "$value"; done
check "--kv-type" expect 2 "--kv-type" plan m.gguf --kv-type q4_0
check "--threads -1" expect 2 "--threads" plan m.gguf --threads -1

# ---- files -----------------------------------------------------------------------------------------------------------
check "missing file" expect 2 "nothing.gguf" plan "$work/nothing.gguf"
check "folder" expect 2 "$work" plan "$work"
: >"$work/empty.gguf"
check "empty file" expect 2 "empty.gguf" plan "$work/empty.gguf"
printf 'GGUF' >"$work/magic.gguf"
check "only the magic" expect 2 "magic.gguf" plan "$work/magic.gguf"
check "--info of no plan" expect 2 "magic.gguf" plan --info "$work/magic.gguf"
check "--verify of no plan" expect 2 "magic.gguf" plan --verify "$work/magic.gguf"

if ! unpack_model llama_tied "$work"; then
    skip "plans of a real file" "no test data at $(test_data)"
    finish
    exit
fi
gguf=$work/llama_tied.f16.gguf
size=$(stat -c %s "$gguf")

make_plan() { plan "$gguf" --vram 0 "$@"; }
check "a plan" make_plan -o "$work/m.atsp"
check "--verify" sh -c "'$B/atsi-plan' --verify '$work/m.atsp' | grep -q good"
check "--verify --json" sh -c "'$B/atsi-plan' --verify '$work/m.atsp' --json | jq -e '.good and .n_tensors > 0'"
check "--info" sh -c "'$B/atsi-plan' --info '$work/m.atsp' | grep -q 'all on the CPU'"
check "--info --json" sh -c "'$B/atsi-plan' --info '$work/m.atsp' --json | jq -e '.program.units[0].kind == \"embed\"'"
check "--info to a full device" sh -c "! '$B/atsi-plan' --info '$work/m.atsp' >/dev/full"
check "--json" sh -c "'$B/atsi-plan' '$gguf' --vram 0 --quiet --json -o '$work/j.atsp' | jq -e '.n_ctx == 2048 and .n_gpu_units == 0'"
check "--quiet says nothing" sh -c "[ -z \"\$('$B/atsi-plan' '$gguf' --vram 0 --quiet -o '$work/q.atsp' 2>&1)\" ]"
same_content() { # but for the note of time and command
    plan --info "$1" --json | jq -S 'del(.notes)' | cmp - <(plan --info "$2" --json | jq -S 'del(.notes)')
}
check "the same plan twice" same_content "$work/j.atsp" "$work/q.atsp"
check "default name, in the current folder" sh -c "cd '$work' && '$B/atsi-plan' '$gguf' --vram 0 --quiet && [ -s llama_tied.f16.atsp ]"
check "--ctx above the model's" expect 2 "at most 2048" plan "$gguf" --vram 0 --ctx 4096 --quiet -o "$work/x.atsp"
check "the model is not overwritten" expect 2 "replace the model" plan "$gguf" --vram 0 --quiet -o "$gguf"
for option in --report --save-profile; do
    check "nor with $option" expect 2 "replace the model" plan "$gguf" --vram 0 --quiet $option "$gguf" -o "$work/x.atsp"
    check "$option in no folder is told at once" expect 1 "cannot write $work/nowhere/x" plan "$gguf" --vram 0 --quiet $option "$work/nowhere/x" -o "$work/x.atsp"
done
check "two files under one name" expect 2 "two files" plan "$gguf" --device plans/rtx3060-i7-11800h.json --vram 6G --quiet --report "$work/x.atsp" -o "$work/x.atsp"
check "a device is not replaced" expect 2 "/dev/null" plan "$gguf" --vram 0 --quiet -o /dev/null
check "--vocab-only" make_plan --vocab-only -o "$work/v.atsp"
check "--vocab-only holds no tensors" sh -c "'$B/atsi-plan' --info '$work/v.atsp' --json | jq -e .vocab_only"
check "--vocab-only says so in --info" sh -c "'$B/atsi-plan' --info '$work/v.atsp' | grep -q 'only tokenises'"

check "--no-weights" make_plan --no-weights -o "$work/n.atsp"
check "--no-weights is small" sh -c "[ \$(stat -c %s '$work/n.atsp') -lt 500000 ]"
check "--attach" plan "$work/n.atsp" --attach "$gguf" --quiet -o "$work/a.atsp"
check "--attach gives the same plan" same_content "$work/a.atsp" "$work/m.atsp"
check "--attach verifies" plan --verify "$work/a.atsp"
cp "$gguf" "$work/other.gguf"
printf '\x01' | dd of="$work/other.gguf" bs=1 seek=$((size - 9)) conv=notrunc status=none
head -c $((size - 32)) "$gguf" >"$work/short.gguf"
check "--attach of a cut model" expect 2 "short.gguf" plan "$work/n.atsp" --attach "$work/short.gguf" --quiet -o "$work/b.atsp"
check "--ship" make_plan --ship -o "$work/s.atsp"
check "--ship verifies" plan --verify "$work/s.atsp"

# ---- damaged and hostile ---------------------------------------------------------------------------------------------
flip_plan() { # OFFSET: a plan with one byte changed
    cp "$work/m.atsp" "$work/bad.atsp"
    local byte
    byte=$(od -An -tu1 -j "$1" -N1 "$work/bad.atsp")
    printf "\\x$(printf %02x $((byte ^ 255)))" | dd of="$work/bad.atsp" bs=1 seek="$1" conv=notrunc status=none
}
for at in 0 8 16 40; do
    flip_plan $at
    check "a plan with byte $at changed" expect 2 "bad.atsp" plan --verify "$work/bad.atsp"
done
flip_plan $(($(stat -c %s "$work/m.atsp") / 2)) # among the weights
check "a plan with a weight changed" expect 2 "bad.atsp" plan --verify "$work/bad.atsp"
head -c 100000 "$work/m.atsp" >"$work/cut.atsp"
check "a cut plan" expect 2 "cut.atsp" plan --info "$work/cut.atsp"
rejects_prefixes() {
    local n
    for n in 1 3 8 23 24 100 1000 5000 20000 60000 $((size - 1)); do
        head -c "$n" "$gguf" >"$work/p.gguf"
        expect 2 "p.gguf" plan "$work/p.gguf" --vram 0 -o "$work/p.atsp" || return 1
        [ ! -e "$work/p.atsp" ] || return 1
    done
}
check "a model cut anywhere" rejects_prefixes

# ---- plans that cannot be written ------------------------------------------------------------------------------------
unwritten() { # DIR: the old plan is as it was and nothing else is left
    [ "$(cat "$1/old.atsp")" = old ] && [ "$(ls -A "$1")" = old.atsp ]
}
mkdir "$work/ro"
echo old >"$work/ro/old.atsp"
chmod 555 "$work/ro"
if [ "$(id -u)" -ne 0 ]; then
    check "a read-only folder" expect 1 "$work/ro/old.atsp" plan "$gguf" --vram 0 --quiet -o "$work/ro/old.atsp"
    check "the old plan stays" unwritten "$work/ro"
else
    skip "a read-only folder" "root may write everywhere"
fi
check "a folder that is not there" expect 1 "nowhere" plan "$gguf" --vram 0 --quiet -o "$work/nowhere/m.atsp"
mkdir "$work/full"
echo old >"$work/full/old.atsp"
limited() { (ulimit -f 64 && plan "$gguf" --vram 0 --quiet -o "$work/full/old.atsp"); }
check "a file size limit" expect 1 "old.atsp: File too large" limited
check "the old plan stays at a limit" unwritten "$work/full"
if mount -t tmpfs -o size=64k tmpfs "$work/full" 2>/dev/null; then
    echo old >"$work/full/old.atsp"
    check "a full disk" expect 1 "old.atsp: No space left" plan "$gguf" --vram 0 --quiet -o "$work/full/old.atsp"
    check "the old plan stays on a full disk" unwritten "$work/full"
    umount "$work/full"
fi
finish
