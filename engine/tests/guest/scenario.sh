# shellcheck shell=bash
# What scenarios share. A scenario is a script that starts on the host, there starts itself again in
# a guest or in both guests of a pair, and ends with status 0 or with the output of what failed:
#
#   . "$(dirname "$(readlink -f "$0")")/../scenario.sh"
#   if on_host; then in_guest --timeout 60; exit; fi
#   check 'what is to hold' COMMAND...
#
# SPINRPC_BIN is the directory of the programs under test (without it, where suite builds them),
# SPINRPC_OUT that for what is left over (console, dmesg, wire.pcap); suite sets both. With --full or SPINRPC_FULL=1 a scenario is as
# long as the test is worth, and goes over both devices, and without it is as short as CI needs it.
guest=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
me=$(readlink -f "$0")
case ${SPINRPC_GUEST_ARCH-} in
    arm64) built=aarch64-unknown-linux-gnu/release ;;
    *) built=release ;;
esac
bin=${SPINRPC_BIN:-$guest/../../../target/unlinked/$built}
full=${SPINRPC_FULL-}
for option; do
    case $option in
        --full) full=1 ;;
        *) echo "guest: options: --full" >&2 && exit 125 ;;
    esac
done

# either SHORT FULL: the one or the other.
either() {
    if [ -n "$full" ]; then echo "$2"; else echo "$1"; fi
}

on_host() {
    [ -z "${SPINRPC_GUEST-}" ]
}

# in_guest OPTIONS...: this script in a guest; the options are those of run.
in_guest() {
    setpriv --pdeathsig TERM "$guest/run" --out "$SPINRPC_OUT" --env SPINRPC_BIN="$bin" --env SPINRPC_FULL="$full" "$@" -- "$me" || died
}

# in_pair OPTIONS...: this script in both guests of a pair; the options are those of pair. Which
# one it is in, SPINRPC_GUEST says: a or b.
in_pair() {
    setpriv --pdeathsig TERM "$guest/pair" --out "$SPINRPC_OUT" --env SPINRPC_BIN="$bin" --env SPINRPC_FULL="$full" "$@" "$me" "$me" || died
}

# died: passes the status on; a guest that did not finish left behind what it was at.
died() {
    local status=$? unfinished
    for unfinished in "$SPINRPC_OUT"/check "$SPINRPC_OUT"/[ab]/check; do
        [ $status != 125 ] || [ ! -s "$unfinished" ] || failed "not finished: $(head -1 "$unfinished")" "$unfinished"
    done
    return $status
}

# failed WHAT LOG: to where the script began to write; a function that fails may write elsewhere.
failed() {
    echo "  FAILED    $1" >&3
    sed '1d; s/^/          /' "$2" >&3
}

# check WHAT COMMAND...: a command that must succeed. It is not run under a condition, which would
# switch off set -e in functions. Its seconds are printed, to find what a scenario spends its time on.
check() {
    local began=$SECONDS
    doing=$1
    shift
    echo "$doing" >"$log"
    "$@" >>"$log" 2>&1
    printf '  ok %3d s  %s\n' $((SECONDS - began)) "$doing"
    : >"$log"
    doing=''
}

# report: at the end, says what failed. The output of checks that held is of no interest.
report() {
    local status=$?
    [ $status = 0 ] || [ -z "$doing" ] || failed "$doing (status $status)" "$log"
    rm -rf ${temporary:+"$temporary"}
}

# fails_saying PATTERN COMMAND...: it ends by itself, with an error that says so.
fails_saying() {
    local pattern=$1 said=/run/said
    shift
    must_fail "$@" >"$said" 2>&1 || { cat "$said"; return 1; }
    cat "$said"
    grep -qEi "$pattern" "$said"
}

# must_fail COMMAND...: with a status of its own, neither by a signal nor by being timed out, by a
# panic (101) or by what it would say to a wrong command line (2).
must_fail() {
    local status=0
    "$@" || status=$?
    case $status in
        0) echo 'it succeeded' && false ;;
        2) echo 'it does not take this command line' && false ;;
        101) echo 'it panicked' && false ;;
        124) echo 'it hung, and timeout ended it' && false ;;
        12[67]) echo 'the shell could not run it' && false ;;
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
    wait_for 120 listening "$port" || { cat "/run/server.$port"; return 1; }
}

# try_ping ADDRESS: rping's client, with a server that serves more than one (-P). rping's server loses its place when the
# next request comes before the completion of its own RDMA Write, an order that iWARP allows; its client then waits for
# ever. Of connections over siw, 2 of 52 ended so, and 13 of 64 on a busy host.
try_ping() {
    local try
    for try in {1..10}; do
        ! timeout 20 rping -c -a "$1" -p 7001 -C 10 -v || return 0
        echo "try $try of rping failed"
    done
    return 1
}

# by_perftest TOOL DEVICE ADDRESS BYTES COUNT [OPTION...]: prints what a tool of perftest's does, by
# rdma_cm with itself. Of thirty runs on siw one fails while the two exchange their addresses, before
# anything is measured.
by_perftest() {
    local options=(-R -F -d "$2" -s "$4" -n "$5" -p 7002 "${@:6}") try said=/run/perftest
    for try in {1..6}; do
        serve 7002 timeout 120 taskset -c 0 "$1" "${options[@]}"
        if timeout 120 taskset -c 1 "$1" "${options[@]}" "$3" >$said && wait "$server"; then
            cat $said
            return
        fi
        { cat $said && echo "try $try of $1 failed"; } >&2
        kill "$server" 2>/dev/null || true
        wait "$server" || true
    done
    return 1
}

# send_lat DEVICE ADDRESS BYTES COUNT
send_lat() {
    by_perftest ib_send_lat "$@"
}

# stop PROCESS...: as their user would, and until they have ended.
stop() {
    local process
    kill "$@"
    for process in "$@"; do
        wait_for 120 ended "$process"
        wait "$process" || true
    done
}

ended() {
    ! kill -0 "$1" 2>/dev/null
}

# quiet_kernel [EXPECTED]: the kernel has warned of nothing since kernel_mark, but of what the pattern
# EXPECTED names.
quiet_kernel() {
    local complaints
    complaints=$(kernel_complaints | grep -Ev "${1:-^$}" || true)
    echo "$complaints"
    [ -z "$complaints" ]
}

# quiet_but_for_failures: as quiet_kernel, where a test has the devices fail. Their drivers speak then of
# work requests that are refused, of iWARP's word for the end, and of memory that may not be locked.
quiet_but_for_failures() {
    local meant='non-flush error status|make_send_cqe: .* callbacks suppressed|siw: got TERMINATE'
    quiet_kernel "$meant|siw_rx_umem: .*bogus addr|rxe_reg_user_mr: returned err = -12"
}

# nothing_left LINES: the devices hold what they held when resources printed the lines.
nothing_left() {
    # The kernel takes seconds to tidy up after a process that was killed with many memory windows.
    wait_for 120 same_resources "$1" || { resources; rdma resource show qp; return 1; }
}

same_resources() {
    [ "$(resources)" = "$1" ]
}

doing='' temporary=''
exec 3>&1
trap report EXIT
if on_host; then
    if [ ! -x "$bin/spinperf" ]; then
        echo "guest: no programs in $bin: run $guest/suite once, or set SPINRPC_BIN" >&2
        exit 125
    fi
    # Without suite, what is left over is removed at the end.
    [ -n "${SPINRPC_OUT-}" ] || { temporary=$(mktemp -d) && SPINRPC_OUT=$temporary/out; }
    log=$(dirname "$SPINRPC_OUT")/check
else
    # Bash sources BASH_ENV only, and only in the guest.
    # shellcheck source=inside.sh
    . "$guest/inside.sh"
    log=/out/check # stays when the guest does not finish
fi
