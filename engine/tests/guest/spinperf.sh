# shellcheck shell=bash
# Workloads of spinperf over RDMA, all verified. Sourced by the scenarios that run them.

# profiles: two to choose from. plain is for many connections in the little memory of a guest, on
# processors that are shared: idle cores sleep. segments has 64 KiB ones, sixteen for 1 MiB.
profiles() {
    cat >/run/plain.toml <<'END'
schema = 1
include = ["base"]
description = "many connections in a guest"
[fabric]
driver = "verbs"
[poll]
mode = "adaptive"
[mem]
arena_mib = 32
[rpc]
credits = 32
timeout_ms = 60000
[verbs]
arena_mib = 2
END
    sed 's/^arena_mib = 2$/arena_mib = 40/; s/^credits/segment_bytes = 65536\ncredits/' /run/plain.toml >/run/segments.toml
}

# spinperf_up ADDRESS PORT PROFILE CORES: a server.
spinperf_up() {
    serve "$2" "${bin:?}/spinperf" serve --address "rdma://$1:$2" --profile "/run/$3.toml" --cores "$4"
}

# load ADDRESS PORT PROFILE OPTION...: a run in which every byte is verified at both ends.
load() {
    local address=$1 port=$2 profile=$3
    shift 3
    timeout 60 "${bin:?}/spinperf" run --address "rdma://$address:$port" --profile "/run/$profile.toml" \
        --verify full --warmup 0ms --duration 30s "$@"
}

# load_up ADDRESS CONNECTIONS: reads in the background, until the server $spinperf has that many
# connections. The client is $client, and writes to /run/client.
load_up() {
    "${bin:?}/spinperf" run --address "rdma://$1:7100" --profile /run/plain.toml --cores 1 --op read \
        --size 64K --depth 4 --connections "$2" --verify full --duration 60s >/run/client 2>&1 &
    # shellcheck disable=SC2034 # for the caller
    client=$!
    wait_for 20 connected "$2"
}

# connected COUNT: so many queue pairs of the server's.
connected() {
    [ "$(rdma resource show qp | grep -c "state RTS .*pid ${spinperf:?} ")" -ge "$1" ]
}

# client_said PATTERN: the client of load_up ended with an error that says so.
client_said() {
    wait_for 30 ended "${client:?}"
    cat /run/client
    must_fail wait "$client"
    grep -qEi "$1" /run/client
}

# workloads NAME ADDRESS CORES: all operations, small, large, deep, and on many connections.
workloads() {
    local op size
    check "$1: null" load "$2" 7100 plain --op null --calls 100 --cores 0
    for op in echo read write; do
        for size in 64 4K 1MiB; do
            check "$1: $op $size" load "$2" 7100 plain --op $op --size $size --calls 100 --cores 0
        done
    done
    for op in echo read write; do
        check "$1: $op 64, 32 deep" load "$2" 7100 plain --op $op --depth 32 --calls 2000 --cores 0
        check "$1: $op 1MiB in 16 segments" load "$2" 7101 segments --op $op --size 1MiB --depth 4 --calls 40 --cores 0
    done
    check "$1: 100 connections, 2 cores" load "$2" 7100 plain --connections 50 --calls 2000 --depth 4 --cores "$3"
}
