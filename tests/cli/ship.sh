#!/usr/bin/env bash
# Plans compressed for transport: unpacked once beside themselves, verified on the way, run where that cannot be written.
. "$(dirname "$0")/../support/cli.sh"
plan=$work/m.atsp
unpacked=$work/m.unpacked.atsp
make_plan() { "$B/atsi-plan" plans/demo.gguf --vram 0 --quiet "$@"; }
run() { "$B/atsi-run" "$1" --device cpu --quiet --temp 0 -p "Once upon a time" -n 16 --print-ids; }

make_plan -o "$work/plain.atsp" && make_plan --ship -o "$plan" || exit 1
expected=$(run "$work/plain.atsp")

same_text() { [ "$(run "$1")" = "$expected" ]; }
is_raw() { "$B/atsi-plan" --verify "$unpacked" && ! "$B/atsi-plan" --info "$unpacked" | grep -E 'compressed'; }
written_once() {
    local before after
    before=$(stat -c '%i %Y' "$unpacked")
    run "$plan" >/dev/null && after=$(stat -c '%i %Y' "$unpacked") && [ "$before" = "$after" ]
}
says_where() { # a file of the model's size appears: once
    local line="unpacked, once, to $unpacked"
    rm "$unpacked" && "$B/atsi-run" "$plan" --device cpu -p a -n 1 2>&1 >"$work/out" | grep -xF "$line" &&
        ! "$B/atsi-run" "$plan" --device cpu -p a -n 1 2>&1 >"$work/out" | grep -F unpacked
}
of_another_plan() { # what stands there is replaced when it is not this plan's
    make_plan --ctx 64 -o "$unpacked" && same_text "$plan" && "$B/atsi-plan" --info "$unpacked" | grep 'context 512'
}
cut_short() { head -c 100000 "$work/plain.atsp" >"$unpacked" && same_text "$plan" && is_raw; }
damaged() {
    local rc size
    mkdir "$work/damaged" && cp "$plan" "$work/damaged/m.atsp" && size=$(stat -c %s "$plan")
    printf 'damage' | dd of="$work/damaged/m.atsp" bs=1 seek=$((size / 2)) conv=notrunc status=none
    "$B/atsi-run" "$work/damaged/m.atsp" --quiet -p a -n 1 >"$work/out" 2>"$work/err"
    rc=$?
    [ $rc -eq 2 ] && grep -q 'checksum' "$work/err" && [ "$(ls "$work/damaged")" = m.atsp ]
}
cannot_write() { # as another user, who may not write there
    mkdir "$work/ro" && cp "$plan" "$work/ro/" && chmod 555 "$work/ro" && chmod 755 "$work" && chown 65534 "$work/ro"
    [ "$(setpriv --reuid=65534 --clear-groups "$B/atsi-run" "$work/ro/m.atsp" --device cpu --temp 0 -p "Once upon a time" -n 16 \
        --print-ids 2>"$work/err")" = "$expected" ] && grep -q 'at every start' "$work/err" && [ "$(ls "$work/ro")" = m.atsp ]
}

check "--tokenize unpacks nothing" sh -c "'$B/atsi-run' '$plan' --tokenize -p a && [ ! -e '$unpacked' ]"
check "the same text" same_text "$plan"
check "every tensor is raw then" is_raw
check "written once" written_once
check "and said where" says_where
check "the file of another plan is replaced" of_another_plan
check "a file that was cut short is replaced" cut_short
check "a damaged tensor is told, nothing is left" damaged
if [ "$(id -u)" -eq 0 ] && setpriv --reuid=65534 --clear-groups test -x "$B/atsi-run"; then
    check "a folder that cannot be written" cannot_write
else
    skip "a folder that cannot be written" "it takes root, and a build that others can read"
fi
finish
