# shellcheck shell=bash
# What scenarios share. A scenario is a script that starts on the host, there starts itself anew in
# a guest or in both guests of a pair, and ends with status 0 or with the output of what failed:
#
#   . "$(dirname "$(readlink -f "$0")")/../scenario.sh"
#   if on_host; then in_guest --timeout 60; exit; fi
#   check 'what is to hold' COMMAND...
#
# SPINRPC_BIN is the directory of the programs under test, SPINRPC_OUT that for what is left over
# (console, dmesg, wire.pcap); suite sets both.
guest=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
me=$(readlink -f "$0")
bin=${SPINRPC_BIN:-$guest/../../../target/debug}
doing='' temporary=''
log=$(mktemp)
# Bash sources BASH_ENV only, and only in the guest.
# shellcheck source=inside.sh
[ -z "${SPINRPC_GUEST-}" ] || . "$guest/inside.sh"

# report: at the end, says what failed. The output of checks that held is of no interest.
report() {
    local status=$?
    if [ $status != 0 ] && [ -n "$doing" ]; then
        echo "  FAILED  $doing (status $status)"
        sed 's/^/          /' "$log"
    fi
    rm -rf "$log" ${temporary:+"$temporary"}
}
trap report EXIT

on_host() {
    [ -z "${SPINRPC_GUEST-}" ]
}

# in_guest OPTIONS...: this script in a guest; the options are those of run.
in_guest() {
    "$guest/run" ${SPINRPC_OUT:+--out "$SPINRPC_OUT"} --env SPINRPC_BIN="$bin" "$@" -- "$me"
}

# in_pair OPTIONS...: this script in both guests of a pair; the options are those of pair. Which
# one it is in, SPINRPC_GUEST says: a or b.
in_pair() {
    "$guest/pair" ${SPINRPC_OUT:+--out "$SPINRPC_OUT"} --env SPINRPC_BIN="$bin" "$@" "$me" "$me"
}

# keep_out: SPINRPC_OUT is set, for what is left over is looked at here. Without suite it is a
# directory that is removed at the end.
keep_out() {
    [ -z "${SPINRPC_OUT-}" ] || return 0
    temporary=$(mktemp -d)
    SPINRPC_OUT=$temporary
}

# check WHAT COMMAND...: a command that must succeed. It is not run under a condition, which would
# switch off set -e in functions.
check() {
    doing=$1
    shift
    "$@" >"$log" 2>&1
    echo "  ok      $doing"
    doing=''
}

# refuse WHAT COMMAND...: a command that must end by itself, with an error.
refuse() {
    check "$1" must_fail "${@:2}"
}

must_fail() {
    local status=0
    "$@" || status=$?
    case $status in
        0) echo 'it succeeded' && false ;;
        124) echo 'it hung, and timeout ended it' && false ;;
        12[67]) echo 'the shell could not run it' && false ;;
        255) ;; # rping's -1
        *) [ "$status" -lt 128 ] || { echo "it crashed: status $status" && false; } ;;
    esac
}

# serve PORT COMMAND...: a server in the background, until it listens. Its process is $server.
serve() {
    local port=$1
    shift
    "$@" >"/run/server.$port" 2>&1 &
    # shellcheck disable=SC2034 # for the caller
    server=$!
    wait_for 20 listening "$port" || { cat "/run/server.$port"; return 1; }
}

# quiet_kernel: the kernel has warned of nothing since kernel_mark.
quiet_kernel() {
    local complaints
    complaints=$(kernel_complaints)
    echo "$complaints"
    [ -z "$complaints" ]
}

# nothing_left LINES: the devices hold what they held when resources printed the lines.
nothing_left() {
    wait_for 10 same_resources "$1" || { resources; return 1; }
}

same_resources() {
    [ "$(resources)" = "$1" ]
}
