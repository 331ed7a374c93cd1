#!/usr/bin/env bash
# The HTML report: every panel is there, the page needs nothing from outside, a browser has nothing to say about it.
. "$(dirname "$0")/../support/cli.sh"
if ! unpack_model qwen3moe "$work"; then
    skip "the report" "no test data at $(test_data)"
    finish
    exit
fi
report=$work/report.html
check "--report" "$B/atsi-plan" "$work/qwen3moe.f16.gguf" --device plans/rtx3060-i7-11800h.json --vram 432M --quiet --report "$report"
for panel in memory grid density timeline budgets; do
    check "panel $panel with a figure and its text" sh -c "grep -A2 '<section id=\"$panel\">' '$report' | grep -q '<title>'"
done
check "nothing from outside, no script" sh -c "! grep -qE 'https?://|<script|<link|<img|url\(' '$report'"
check "light and dark" grep -q 'prefers-color-scheme:dark' "$report"
check "every unit is in the grid" sh -c "[ \$(grep -o 'blk\.[0-9]*\.ffn_up_exps: ' '$report' | sort -u | wc -l) -eq 4 ]"
names_are_escaped() {
    sed 's/Tiny Qwen3Moe Dev/<b>\&"Qwen3MoeDev>/' "$work/qwen3moe.f16.gguf" >"$work/evil.gguf" # as many bytes as before
    [ "$(stat -c %s "$work/evil.gguf")" -eq "$(stat -c %s "$work/qwen3moe.f16.gguf")" ] || return 1
    "$B/atsi-plan" "$work/evil.gguf" --device plans/rtx3060-i7-11800h.json --vram 432M --quiet --report "$work/evil.html" || return 1
    ! grep -q '<b>&' "$work/evil.html" && grep -q '&lt;b&gt;' "$work/evil.html"
}
check "names are escaped" names_are_escaped
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
    skip "the page in a browser" "no Chromium here"
else
    in_browser() { # the parsed page has every figure, and the console is empty
        timeout 60 "$browser" --headless --no-sandbox --disable-gpu --enable-logging=stderr --v=0 --user-data-dir="$work/profile" \
            --dump-dom "file://$report" >"$work/dom" 2>"$work/console" || return 1
        ! grep -E 'CONSOLE' "$work/console" && [ "$(grep -o '<svg ' "$work/dom" | wc -l)" -eq 5 ] && ! grep -qE 'NaN|-?inf' "$work/dom"
    }
    check "the page in a browser" in_browser
fi
finish
