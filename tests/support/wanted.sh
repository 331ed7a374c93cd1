# shellcheck shell=bash
# wanted.sh: sourced by the scripts that run programs. wanted NAME [PART...]: whether one of PART stands in NAME, or there is none.
wanted() {
    local name=$1 part
    shift
    [ $# -gt 0 ] || return 0
    for part in "$@"; do
        [[ $name == *"$part"* ]] && return 0
    done
    return 1
}
