# shellcheck shell=bash
# cli.sh: sourced by test scripts. They stand in the repository's root, have the build folder in B and an empty folder in work, which is
# removed at the end whatever they made of it, and print TAP lines.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/support/tap.sh
B=$(realpath "${B:-build}")
work=$(mktemp -d)
export XDG_CACHE_HOME=$work/cache # nothing of the user's, and nothing left there
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
