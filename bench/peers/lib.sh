# shellcheck shell=bash
# Functions shared by the files `measure` and `prepare` of the peers. run starts them and sets
#
#   PEERS_CLIENT_CORE, PEERS_SERVER_CORE   cores of the two ends
#   PEERS_WORK                             an empty directory for this tool and round
#   PEERS_TARGET, PEERS_REPOSITORY         build directory, and sources
#   PEERS_SPINPERF                         spinperf, which tells how far apart the two cores are
#
# They print the figures of one round: lines of ROW KEY VALUE PLACEMENT (see README.md).
set -euo pipefail
export LC_ALL=C
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
peer=$(basename "$(dirname "$(readlink -f "$0")")")
: "${PEERS_TARGET:?is set by bench/peers/run}"
# Programs of our own.
# shellcheck disable=SC2034 # for the files that source this one
programs=$PEERS_TARGET/peers

# Limit of one tool's run, which takes a second or two on an idle machine.
TOOL_SECONDS=120
READY_SECONDS=60
server='' elapsed_s='' placement=-

fail() {
    echo "$peer: $*" >&2
    exit 1
}

# serve COMMAND...: runs it on the server's core in the background, until stop_server or server_ends.
# It stays in the foreground group of run, whose timeout therefore ends it, too.
serve() {
    timeout --foreground -k 5 $TOOL_SECONDS taskset -c "$PEERS_SERVER_CORE" "$@" >"$PEERS_WORK/server" 2>&1 &
    server=$!
}

# ready COMMAND...: waits until the command succeeds, which means that the server can be called.
ready() {
    local deadline=$((SECONDS + READY_SECONDS))
    until "$@"; do
        kill -0 "$server" 2>/dev/null || fail "the server exited: $(tail -1 "$PEERS_WORK/server")"
        [ $SECONDS -lt $deadline ] || fail "the server is not ready after $READY_SECONDS s: $*"
        sleep 0.05
    done
}

# said PATTERN: succeeds if the server has printed it.
said() {
    grep -q -e "$1" "$PEERS_WORK/server"
}

# listening PORT: succeeds if there is a TCP listener. Does not connect, because the server would take
# this connection for that of the measuring client.
listening() {
    grep -qi "$(printf ':%04X [0-9A-F]*:0000 0A' "$1")" /proc/net/tcp /proc/net/tcp6
}

# free_port: a free port outside of the kernel's ephemeral range.
free_port() {
    local port
    for _ in {1..100}; do
        port=$((20000 + RANDOM % 12000))
        listening $port || { echo $port && return; }
    done
    fail "no free port"
}

# placed: placement of the two cores now: threads, near or far, by the round trip of a cache line, or moved if it just changed.
# Virtual CPUs of one host change it within seconds.
placed() {
    "$PEERS_SPINPERF" floor --only 'cache line' --repeats 3 --duration 10ms --cores "$PEERS_CLIENT_CORE,$PEERS_SERVER_CORE" \
        --json "$PEERS_WORK/line.json" >/dev/null || fail "spinperf floor: status $?"
    grep -oE '"(threads|near|far|moved)"' "$PEERS_WORK/line.json" | sort -u |
        awk -F '"' '{ found = $2 } END { print NR == 1 ? found : "moved" }'
}

# call FILE COMMAND...: runs it on the client's core with its output in the file; sets $elapsed_s to
# its running time, and $placement to that of the two cores, or to "moved" if it was another one afterwards.
call() {
    local file=$PEERS_WORK/$1 began
    placement=$(placed)
    began=$EPOCHREALTIME
    shift
    timeout --foreground -k 5 $TOOL_SECONDS taskset -c "$PEERS_CLIENT_CORE" "$@" >"$file" ||
        fail "$1: status $?: $(tail -1 "$file")"
    elapsed_s=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')
    [ "$(placed)" = "$placement" ] || placement=moved
}

# server_ends: waits for the server to exit after its client; timeout bounds the wait.
server_ends() {
    wait "$server" || fail "the server: status $?: $(tail -1 "$PEERS_WORK/server")"
    server=''
}

stop_server() {
    [ -n "$server" ] || return 0
    kill "$server" 2>/dev/null || true
    wait "$server" || true
    server=''
}

# figures ROW FILE WHAT [NAME=VALUE...]: the tool's output in the file, as lines of ROW KEY VALUE PLACEMENT.
figures() {
    local row=$1 file=$PEERS_WORK/$2
    shift 2
    "$here/parse" "$peer" "$@" elapsed_s="$elapsed_s" <"$file" | sed "s/^/$row /; s/\$/ $placement/"
}

trap stop_server EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
