#!/usr/bin/env bash
# Installs the Debian packages that building and testing need. Does nothing, fast, when all are there.
#   tools/setup.sh          what `make`, `make demo` and `make check` need
#   tools/setup.sh --lint   also what `make lint` and `make fuzz` need
set -euo pipefail

packages=(gcc libc6-dev make pkg-config
    libglpk-dev libcjson-dev libzstd-dev libpcre2-dev libutf8proc-dev libxxhash-dev libcmocka-dev
    zstd jq)
if [ "${1:-}" = --lint ]; then
    packages+=(clang clang-format clang-tidy shellcheck)
fi

fail() {
    echo "setup: $1" >&2
    exit 1
}

command -v dpkg-query >/dev/null || fail "this is not Debian; install the counterparts of: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "as root, run: apt-get install -y ${missing[*]}"
    as_root=(sudo)
fi

echo "setup: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
install() {
    "${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1
}
refresh() {
    "${as_root[@]}" apt-get update >"$log" 2>&1
}
# The package lists may be absent or old: fetch them only when the first try fails.
if ! install && ! { refresh && install; }; then
    tail -n 5 "$log" >&2
    fail "apt-get could not install: ${missing[*]}"
fi
