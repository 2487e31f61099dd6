#!/usr/bin/env bash
# Measures the cost of version two of RPC-over-RDMA. spinperf calls the same server alternately in
# version one and version two. Prints the medians of each, and of the ratios within a round: of the p50,
# and of the mean, which is finer than the clock but includes every disturbance.
#
#   bench/peers/versions.sh [ROUNDS [CLIENT_CORE [SERVER_CORE [DURATION]]]]     (15 0 1 300ms)
#
# Exits with status 1 if a null call or a 64-byte echo takes more than 3 % longer in version two. Needs
# target/release/spinperf (cargo build --release -p spinrpc-bench), or SPINPERF=PATH.
# shellcheck disable=SC2016 # the fields are awk's
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
"$spinperf" serve --address "$address" --cores "$server_core" --no-reverse --set rpc.version=auto >"$work/server" 2>&1 &
server=$!
for _ in $(seq 50); do
    grep -q listening "$work/server" && break
    sleep 0.1
done

# latency OPERATION VERSION: p50 and mean of one run, in ns.
latency() {
    "$spinperf" run --address "$address" --cores "$client_core" --op "$1" --set "rpc.version=$2" \
        --duration "$duration" --warmup 50ms --json "$work/run.json" >/dev/null
    grep -q "\"rpc_version\": $2," "$work/run.json" || fail "the connection does not use version $2"
    awk -F '[:,]' '$1 ~ /"p50_ns"/ { p50 = $2 } $1 ~ /"calls_per_second"/ { rate = $2 } END { print p50, 1e9 / rate }' "$work/run.json"
}

# The second run of a round finds warm caches, so the order alternates, too.
for ((round = 0; round < rounds; round++)); do
    [ ! -t 2 ] || printf '\rround %d of %d' $((round + 1)) "$rounds" >&2
    for op in null echo; do
        ((round % 2)) || one=$(latency $op 1)
        two=$(latency $op 2)
        ((round % 2 == 0)) || one=$(latency $op 1)
        echo "$op $one $two" >>"$work/rounds"
    done
done
[ ! -t 2 ] || echo >&2

# median EXPRESSION: median over the rows of $op, whose fields are p50 and mean in version 1, then in
# version 2.
median() {
    awk -v op="$op" "\$1 == op { print $1 }" "$work/rounds" | sort -g |
        awk '{ value[NR] = $1 } END { print (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }'
}

missed=0
echo "medians of $rounds rounds, in ns"
printf '%-5s %-5s %10s %10s %8s\n' '' '' 'version 1' 'version 2' ratio
for op in null echo; do
    ratio=$(median '$4 / $2')
    verdict=$(awk -v ratio="$ratio" -v bound=$BOUND 'BEGIN { print ratio <= bound ? "met" : "MISSED" }')
    [ "$verdict" = met ] || missed=1
    printf '%-5s %-5s %10.0f %10.0f %8.3f  %s: at most %s\n' $op p50 "$(median '$2')" "$(median '$4')" "$ratio" "$verdict" $BOUND
    printf '%-5s %-5s %10.0f %10.0f %8.3f\n' $op mean "$(median '$3')" "$(median '$5')" "$(median '$5 / $3')"
done
exit $missed
