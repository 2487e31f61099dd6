#!/usr/bin/env bash
# Compares spinperf with UCX active messages on the same two cores, in turns, and prints medians.
#
#   bench/peers/ucx/compare.sh [REPEATS [CLIENT_CORE [SERVER_CORE]]]
#
# Needs ucx_perftest; on Debian: apt-get install ucx-utils. Installs nothing. Both tools get the
# same cores, one after the other, so that neither disturbs the other and both see the same minutes.
#
# What is compared:
#   rate     whole null calls per second at depth 32 (a call is two messages, with RPC headers and
#            credits)  against  one-way 64-byte active messages per second (ucp_am_bw)
#   latency  p50 of a 64-byte echo, full round trip  against  ucp_am_lat; ucx_perftest reports half
#            a round trip, which is doubled here
set -euo pipefail

repeats=${1:-5}
client_core=${2:-0}
server_core=${3:-1}
port=${UCX_PORT:-13399}
spinperf=${SPINPERF:-$(dirname "$0")/../../../target/release/spinperf}
export UCX_TLS=posix,cma,self

fail() { echo "compare.sh: $*" >&2; exit 1; }
command -v ucx_perftest >/dev/null || fail "no ucx_perftest; on Debian: apt-get install ucx-utils"
[ -x "$spinperf" ] || fail "no $spinperf; cargo build --release -p spinrpc-bench, or set SPINPERF"

work=$(mktemp -d)
server=
stop_server() { [ -z "$server" ] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }; server=; }
trap 'stop_server; rm -rf "$work"' EXIT

# ucx TEST ITERATIONS: the line of figures that the client prints last.
ucx() {
    taskset -c "$server_core" ucx_perftest -p "$port" >"$work/ucx-server" 2>&1 &
    server=$!
    for _ in $(seq 50); do
        grep -qi "$(printf ':%04X 0*:0000 0A' "$port")" /proc/net/tcp /proc/net/tcp6 && break
        sleep 0.1
    done
    taskset -c "$client_core" ucx_perftest localhost -p "$port" -t "$1" -s 64 -n "$2" -w 100000 -f \
        2>"$work/ucx-errors" | tail -1
    wait "$server" || true
    server=
}

# spin KEY OPTIONS...: the median of KEY in the JSON report.
spin() {
    local key=$1 address="shm:compare-$$"
    shift
    "$spinperf" serve --address "$address" --cores "$server_core" >"$work/spin-server" 2>&1 &
    server=$!
    for _ in $(seq 50); do
        grep -q listening "$work/spin-server" && break
        sleep 0.1
    done
    "$spinperf" run --address "$address" --cores "$client_core" --duration 2s --warmup 200ms \
        --json "$work/spin.json" "$@" >/dev/null
    stop_server
    awk -v key="\"$key\":" '/"median": \{/ { found = 1 } found && $1 == key { sub(",", "", $2); print $2; exit }' \
        "$work/spin.json"
}

median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

for repeat in $(seq "$repeats"); do
    echo "repeat $repeat of $repeats" >&2
    ucx ucp_am_bw 20000000 | awk '{ print $NF }' >>"$work/ucx-rate"
    spin calls_per_second --op null --depth 32 >>"$work/spin-rate"
    ucx ucp_am_lat 2000000 | awk '{ print $2 * 2000 }' >>"$work/ucx-rtt"
    spin p50_ns --op echo --size 64 >>"$work/spin-rtt"
done

for pair in rate rtt; do
    for tool in ucx spin; do
        [ "$(wc -l <"$work/$tool-$pair")" -eq "$repeats" ] || fail "$tool gave no figure: $(cat "$work"/*-errors)"
        median <"$work/$tool-$pair" >"$work/$tool-$pair-median"
    done
done

paste "$work/spin-rate-median" "$work/ucx-rate-median" "$work/spin-rtt-median" "$work/ucx-rtt-median" |
    awk -v n="$repeats" -v c="$client_core" -v s="$server_core" '{
        printf "medians of %d repeats in turns, cores %d and %d\n", n, c, s
        printf "  spinperf null calls/s, depth 32      %8.2f M\n", $1 / 1e6
        printf "  ucx am 64 B one-way messages/s       %8.2f M\n", $2 / 1e6
        printf "  calls for each message               %8.2f   goal: at least 0.6, aim 1.0\n", $1 / $2
        printf "  spinperf echo 64 B round trip p50    %8.0f ns\n", $3
        printf "  ucx am 64 B round trip (2 x p50)     %8.0f ns\n", $4
        printf "  of the round trip of ucx             %8.2f x\n", $3 / $4
    }'
