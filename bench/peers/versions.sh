#!/usr/bin/env bash
# What version two of RPC-over-RDMA costs: spinperf calls the same server in version one and in version
# two, in turns, and prints the medians of each and of the ratios within a round.
#
#   bench/peers/versions.sh [ROUNDS [CLIENT_CORE [SERVER_CORE [DURATION]]]]     (15 0 1 300ms)
#
# Ends with status 1 when version two takes more than 3 % longer, null call or 64-byte echo. Needs
# target/release/spinperf (cargo build --release -p spinrpc-bench), or SPINPERF=PATH.
set -euo pipefail

rounds=${1:-15}
client_core=${2:-0}
server_core=${3:-1}
duration=${4:-300ms}
spinperf=${SPINPERF:-$(dirname "$0")/../../target/release/spinperf}
address=shm:versions-$$
BOUND=1.03

fail() { echo "versions.sh: $*" >&2; exit 2; }
[ -x "$spinperf" ] || fail "no $spinperf; cargo build --release -p spinrpc-bench, or set SPINPERF"

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
"$spinperf" serve --address "$address" --cores "$server_core" --set rpc.version=auto >"$work/server" 2>&1 &
server=$!
for _ in $(seq 50); do
    grep -q listening "$work/server" && break
    sleep 0.1
done

# p50 OPERATION VERSION: of one run, in ns.
p50() {
    "$spinperf" run --address "$address" --cores "$client_core" --op "$1" --set "rpc.version=$2" \
        --duration "$duration" --warmup 50ms --json "$work/run.json" >/dev/null
    grep -q "\"rpc_version\": $2," "$work/run.json" || fail "the connection is not of version $2"
    sed -n 's/^ *"p50_ns": \([0-9.]*\),*$/\1/p' "$work/run.json" | tail -1
}

# Whoever comes second finds the caches warm: they take turns in that as well.
for ((round = 0; round < rounds; round++)); do
    [ ! -t 2 ] || printf '\rround %d of %d' $((round + 1)) "$rounds" >&2
    for op in null echo; do
        if ((round % 2)); then two=$(p50 $op 2) one=$(p50 $op 1); else one=$(p50 $op 1) two=$(p50 $op 2); fi
        echo "$op $one $two" >>"$work/rounds"
    done
done
[ ! -t 2 ] || echo >&2

# median COLUMN: of the rows of $op.
median() {
    awk -v op="$op" -v column="$1" '$1 == op { print column == "ratio" ? $3 / $2 : $column }' "$work/rounds" | sort -g |
        awk '{ value[NR] = $1 } END { print (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }'
}

missed=0
printf '%-5s %14s %14s %14s   %s\n' '' 'version 1, ns' 'version 2, ns' 'ratio' "p50, medians of $rounds rounds"
for op in null echo; do
    ratio=$(median ratio)
    verdict=$(awk -v ratio="$ratio" -v bound=$BOUND 'BEGIN { print ratio <= bound ? "met" : "MISSED" }')
    [ "$verdict" = met ] || missed=1
    printf '%-5s %14.0f %14.0f %14.4f   %s: at most %s\n' $op "$(median 2)" "$(median 3)" "$ratio" "$verdict" $BOUND
done
exit $missed
