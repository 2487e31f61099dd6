# shellcheck shell=bash
# Servers measured in turns by the same client: tables of medians. Sourced after nfsd.sh by nfsd-speed and kerberos, which set
# $WORK, lines of operation, size and depth, and $place, the first word of the rows.
ROUNDS=5

# As in profile verbs-rxe: a core that sleeps between two short calls wakes late, and one that does not sleep during a long
# transfer takes the processor from the threads of the device. One server has these settings for both devices.
# shellcheck disable=SC2034 # for the scenarios
AWAKE=(--set poll.spin_us=25 --set poll.park_us=20000)

# spin_server OPTIONS...: of the same files. It polls between short calls; stopped, it leaves the processors to the
# kernel's.
spin_server() {
    "${bin:?}/spin-nfsd" --state /run/nfsd-state --register no --cores 0 "$@" >/run/server 2>&1 &
    server=$!
    wait_for 120 grep -q '^listening on' /run/server || { cat /run/server; return 1; }
    kill -STOP "$server"
}

# awake PROCESS COMMAND...: with the stopped process at work.
awake() {
    kill -CONT "$1"
    "${@:2}"
    kill -STOP "$1"
}

# duration SIZE: of one measurement. Pieces of 1 MiB end sixteen at a time, so that their rate is exact only over several seconds.
duration() {
    if [ "$1" = 1M ]; then echo 4s; else echo 1s; fi
}

# bench SERVER OPERATION SIZE DEPTH TARGET OPTIONS...: a line of JSON at the end of the row's file. The client polls, so
# that the figures are the server's: one that sleeps between two calls adds its own time to wake up.
bench() {
    local row=/run/speed/${place:?}.$2.$3.$4.$1
    timeout 120 taskset -c 1 "$bin/spin-nfs" bench "$2" "$5" --duration "$(duration "$3")" --size "$3" --depth "$4" --overwrite \
        --warmup 0.1s --set poll.mode=busy --json "${@:6}" | tee -a "$row"
}

# by_turns COMMAND SERVER...: all the work on one server after the other, as often as there are rounds.
# COMMAND gets the server, and the operation, size and depth.
by_turns() {
    local round operation size depth each
    mkdir -p /run/speed
    for ((round = 0; round < ROUNDS; round++)); do
        while read -r operation size depth; do
            for each in "${@:2}"; do
                "$1" "$each" "$operation" "$size" "$depth"
            done
        done <<<"$WORK"
    done
}

# median FIGURE FILE: of the figure's values in the lines of a file; - of none, as of a p99 of few calls.
median() {
    sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p" "$2" | sort -n | awk '
        { value[NR] = $1 }
        END { if (NR == 0) { print "-"; exit } print (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }'
}

# table SERVER...: the medians of the rows of $place, and the rates of the others as part of the first one's.
table() {
    local operation size depth each first row
    while read -r operation size depth; do
        first=''
        for each in "$@"; do
            row=/run/speed/$place.$operation.$size.$depth.$each
            [ "$(wc -l <"$row")" = "$ROUNDS" ]
            first=${first:-$(median calls_per_second "$row")}
            echo "$place $operation $size $depth $each $(median calls_per_second "$row")" \
                "$(median p50 "$row") $(median p99 "$row") $first"
        done
    done <<<"$WORK" | awk '
        function us(ns) { return ns == "-" ? ns : sprintf("%.1f", ns / 1000) }
        { printf "%-4s %-7s %3s x%-2s %-9s %9.0f calls/s  p50 %8s us  p99 %8s us  %5.2f\n",
            $1, $2, $3, $4, $5, $6, us($7), us($8), $6 / $9 }' | tee -a /out/table >"/run/table.$place"
}
