# shellcheck shell=bash
# What the files `measure` and `prepare` of the peers share. They are started by run, which sets
#
#   PEERS_CLIENT_CORE, PEERS_SERVER_CORE   where the two ends run
#   PEERS_WORK                             an empty directory, for this tool and round alone
#   PEERS_TARGET, PEERS_REPOSITORY         where programs are built, and from what
#
# and end with the figures of one round on standard output: lines of ROW KEY VALUE (see README.md).
set -euo pipefail
export LC_ALL=C
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
peer=$(basename "$(dirname "$(readlink -f "$0")")")
: "${PEERS_TARGET:?is set by bench/peers/run}"
# Programs of our own.
# shellcheck disable=SC2034 # for those who source this
programs=$PEERS_TARGET/peers

# One tool's run, a second or two of work where the machine does no other.
TOOL_SECONDS=120
READY_SECONDS=20
server='' elapsed_s=''

fail() {
    echo "$peer: $*" >&2
    exit 1
}

# serve COMMAND...: on the server's core, in the background, until stop_server or server_ends. In the
# foreground group of run, so that its time-out ends this one, too.
serve() {
    timeout --foreground -k 5 $TOOL_SECONDS taskset -c "$PEERS_SERVER_CORE" "$@" >"$PEERS_WORK/server" 2>&1 &
    server=$!
}

# ready COMMAND...: waits until the command succeeds, which is when the server can be called.
ready() {
    local deadline=$((SECONDS + READY_SECONDS))
    until "$@"; do
        kill -0 "$server" 2>/dev/null || fail "the server ended: $(tail -1 "$PEERS_WORK/server")"
        [ $SECONDS -lt $deadline ] || fail "the server is not ready after $READY_SECONDS s: $*"
        sleep 0.05
    done
}

# said PATTERN: whether the server has.
said() {
    grep -q -e "$1" "$PEERS_WORK/server"
}

# listening PORT: whether somebody does, by TCP. The client that asks by connecting would be taken for
# the one that measures.
listening() {
    grep -qi "$(printf ':%04X [0-9A-F]*:0000 0A' "$1")" /proc/net/tcp /proc/net/tcp6
}

# free_port: outside of the range that the kernel gives to clients.
free_port() {
    local port
    for _ in {1..100}; do
        port=$((20000 + RANDOM % 12000))
        listening $port || { echo $port && return; }
    done
    fail "no free port"
}

# call FILE COMMAND...: on the client's core; what it prints goes to the file, and $elapsed_s is how
# long it took.
call() {
    local file=$PEERS_WORK/$1 began=$EPOCHREALTIME
    shift
    timeout --foreground -k 5 $TOOL_SECONDS taskset -c "$PEERS_CLIENT_CORE" "$@" >"$file" ||
        fail "$1: status $?: $(tail -1 "$file")"
    elapsed_s=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')
}

# server_ends: by itself, when its client has; in time, since it runs under timeout.
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

# figures ROW FILE WHAT [NAME=VALUE...]: what the tool printed there, as lines of ROW KEY VALUE.
figures() {
    local row=$1 file=$PEERS_WORK/$2
    shift 2
    "$here/parse" "$peer" "$@" elapsed_s="$elapsed_s" <"$file" | sed "s/^/$row /"
}

trap stop_server EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
