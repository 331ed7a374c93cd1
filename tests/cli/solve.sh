#!/usr/bin/env bash
# atsi-plan --solve and --schedule from outside: results, and every kind of malformed instance refused in one line.
. "$(dirname "$0")/../support/cli.sh"

solve_unit='{"name":"a","size_bytes":10,"t_cpu_us":100.5,"t_gpu_us":10,"switch_us":1,"expert":false}'
solve_text='{"budget_bytes":100,"granularity_bytes":8,"moe":"none","units":['$solve_unit','$solve_unit']}'
round_unit='{"name":"a","size_bytes":10,"default":"cpu","t_cpu_us":100.5,"t_gpu_us":10,"switch_us":1,"transfer_us":50,"after":"start"}'
round_text='{"temp_bytes":100,"policy":"fifo","units":['$round_unit','$round_unit']}'

# answer MODE TEXT FILTER: the result of jq's FILTER on the answer.
answer() {
    printf '%s' "$2" >"$work/in.json"
    "$B/atsi-plan" "$1" "$work/in.json" | jq -ce "$3"
}
gives() {
    local got
    got=$(answer "$1" "$2" "$3")
    [ "$got" = "$4" ] || { echo "$3 gives $got, expected $4"; return 1; }
}

# refused MODE TEXT WORD: exit code 2, nothing on standard output, one line on standard error with WORD in it.
refused() {
    printf '%s' "$2" >"$work/in.json"
    "$B/atsi-plan" "$1" "$work/in.json" >"$work/out" 2>"$work/err"
    local got=$?
    [ "$got" -eq 2 ] || { echo "exit code $got, expected 2"; cat "$work/err"; return 1; }
    [ ! -s "$work/out" ] || { echo "standard output is not empty"; return 1; }
    [ "$(wc -l <"$work/err")" -eq 1 ] || { echo "not one line:"; cat "$work/err"; return 1; }
    grep -qF -- "$3" "$work/err" || { echo "no \"$3\" in: $(cat "$work/err")"; return 1; }
}

# ---- docs/instances.md: its examples and their answers -----------------------------------------------------------------
block() { awk -v n="$1" '/^    /{ if (!inside) i++; inside = 1; if (i == n) print; next } { inside = 0 }' docs/instances.md; }
documented() { # MODE BLOCK FILTER: block BLOCK is answered as block BLOCK + 1 says, times of solving left out
    gives "$1" "$(block "$2")" "$3" "$(block $(($2 + 1)) | sed 's/…/0/g' | jq -ce "$3")"
}
check "the documented instance" documented --solve 1 'del(.seconds)'
check "the documented round" documented --schedule 3 'del(.seconds)'

# ---- answers ---------------------------------------------------------------------------------------------------------
check "placement" gives --solve "$solve_text" .placement '["gpu","gpu"]'
check "objective" gives --solve "$solve_text" .objective_us 181
check "used bytes are rounded up" gives --solve "$solve_text" .used_bytes 32
check "baseline and prediction" gives --solve "$solve_text" '[.baseline_us,.predicted_us]' '[201,20]'
check "certificate" gives --solve "$solve_text" '[.milp.status,.milp.objective_us,.milp.bound_us,.gap]' '["optimal",181,181,0]'
check "seconds" gives --solve "$solve_text" '.seconds|keys' '["dp","milp"]'
check "no budget" gives --solve "${solve_text/:100,/:0,}" .placement '["cpu","cpu"]'
experts=${solve_text/false/true}
check "experts on the CPU when the rest does not fit" gives --solve "${experts/:100,\"g/:12,\"g}" .placement '["cpu","cpu"]'
check "partition" gives --solve "$(sed 's/"none"/"partition"/; s/"budget_bytes":100/"budget_bytes":16/; s/"switch_us":1/"switch_us":500/' <<<"$experts")" \
    '[.placement,.objective_us]' '[["cpu","gpu"],89.5]'
check "unknown fields are ignored" gives --solve "${solve_text/\{/\{\"x\":[1e400,{\"y\":null\}],}" .objective_us 181
check "names may be empty" gives --solve "${solve_text//\"a\"/\"\"}" .objective_us 181

check "assignment" gives --schedule "$round_text" .assignment '["gpu","gpu"]'
check "times" gives --schedule "$round_text" '[.total_us,.lower_bound_us,.units[1]]' '[110,110,{"start_us":100,"end_us":110}]'
check "transfers" gives --schedule "$round_text" '.transfers[1]' '{"unit":1,"start_us":50,"end_us":100,"exposed_us":40}'
check "fifo reports no objective of the paper" gives --schedule "$round_text" 'has("paper_objective_us")|not' true
check "none" gives --schedule "${round_text/fifo/none}" '[.total_us,.transfers]' '[201,[]]'
check "paper" gives --schedule "${round_text/fifo/paper}" '[.assignment,.paper_objective_us,.total_us]' '[["cpu","gpu"],111.5,111.5]'
check "after an index" gives --schedule "$(sed 's/"start"\(}\]\)/0\1/' <<<"$round_text")" .total_us 120
check "one region for both" gives --schedule "${round_text/:100,/:19,}" .total_us 111.5

# ---- malformed -------------------------------------------------------------------------------------------------------
check "missing file" sh -c "'$B/atsi-plan' --solve '$work/none.json' 2>&1 | grep -q none.json"
check "a folder" sh -c "! '$B/atsi-plan' --schedule '$work' 2>/dev/null"
check "full device" sh -c "printf '%s' '$solve_text' >'$work/in.json'; ! '$B/atsi-plan' --solve '$work/in.json' >/dev/full 2>&1"
for mode in --solve --schedule; do
    text=$solve_text unit=$solve_unit top=granularity_bytes
    [ $mode = --schedule ] && text=$round_text unit=$round_unit top=temp_bytes
    check "$mode: empty file" refused $mode '' "ends"
    check "$mode: trailing text" refused $mode "$text x" "after the end"
    check "$mode: cut off" refused $mode "${text%?}" "expected"
    check "$mode: not an object" refused $mode "[$text]" "object"
    check "$mode: duplicate key" refused $mode "${text/\{/\{\"units\":[],}" 'duplicate key "units"'
    check "$mode: duplicate key in a unit" refused $mode "${text/\"name\"/\"name\":\"b\",\"name\"}" 'duplicate key "name"'
    check "$mode: no units" refused $mode "$(jq -c '.units=[]' <<<"$text")" "0 units"
    check "$mode: 4097 units" refused $mode "$(jq -c '.units=[range(4097) as $i|.units[0]]' <<<"$text")" "4097 units"
    check "$mode: units of the wrong type" refused $mode "$(jq -c '.units={}' <<<"$text")" '"units"'
    check "$mode: a unit of the wrong type" refused $mode "$(jq -c '.units[1]=7' <<<"$text")" 'units[1]'
    for field in $(jq -r 'keys[]' <<<"$text"); do
        check "$mode: without $field" refused $mode "$(jq -c "del(.$field)" <<<"$text")" "\"$field\""
        check "$mode: null $field" refused $mode "$(jq -c ".$field=null" <<<"$text")" "\"$field\""
    done
    for field in $(jq -r 'keys[]' <<<"$unit"); do
        check "$mode: unit without $field" refused $mode "$(jq -c "del(.units[1].$field)" <<<"$text")" "units[1]: field \"$field\""
        check "$mode: unit with null $field" refused $mode "$(jq -c ".units[1].$field=null" <<<"$text")" "units[1]: field \"$field\""
    done
    for value in NaN Infinity -Infinity true '"5"' -1 1.0000001e12 1e400; do
        check "$mode: t_cpu_us $value" refused $mode "${text/:100.5/:$value}" in.json
    done
    for value in 10.0 1e1 -1 true '"5"' 9007199254740992 99999999999999999999 010; do
        check "$mode: size_bytes $value" refused $mode "${text/\"size_bytes\":10/\"size_bytes\":$value}" in.json
    done
    for value in 8.0 -1 false; do
        check "$mode: $top $value" refused $mode "$(sed "s/\"$top\":[0-9]*/\"$top\":$value/" <<<"$text")" "$top"
    done
done
check "largest values" gives --solve "$(sed 's/:100.5/:1e12/g; s/"size_bytes":10/"size_bytes":9007199254740991/' <<<"$solve_text")" \
    .placement '["cpu","gpu"]'
check "granularity 0" refused --solve "${solve_text/_bytes\":8/_bytes\":0}" granularity_bytes
check "too many granules" refused --solve "$(sed 's/"budget_bytes":100/"budget_bytes":8388616/' <<<"$solve_text")" granules
check "as many granules as allowed" gives --solve "$(sed 's/"budget_bytes":100/"budget_bytes":8388615/' <<<"$solve_text")" .objective_us 181
check "unknown moe" refused --solve "${solve_text/none/split}" split
check "expert as a number" refused --solve "${solve_text/false/0}" '"expert"'
check "unknown policy" refused --schedule "${round_text/fifo/lifo}" lifo
check "unknown side" refused --schedule "${round_text/cpu/tpu}" tpu
for value in '"next"' 1 2 -1 0.0 true '"0"'; do
    check "after $value" refused --schedule "$(sed "s/\"start\"\(}\]\)/$value\1/" <<<"$round_text")" '"after"'
done
check "after 0 on the first unit" refused --schedule "${round_text/\"start\"/0}" '"after"'
check "a control character in a message is escaped" refused --schedule "${round_text/fifo/\\u001b}" '\x1B'
finish
