# shellcheck shell=bash
# Workloads of spinperf over RDMA, all verified. Sourced by the scenarios that run them.

# profiles: what the workloads need. plain has idle cores sleep, because processors are shared here, and
# has queue pairs wait four seconds for an acknowledgement: the wire loses nothing, a guest that gets no
# processor is late, and rxe numbers an RDMA Write wrongly that it retransmits from its middle on.
# segments has short ones, sixteen for 1 MiB; many has little memory, all of which is registered again
# for each of its connections.
profiles() {
    cat >/run/plain.toml <<'END'
schema = 1
include = ["base"]
description = "processors that are shared"
[fabric]
driver = "verbs"
[poll]
mode = "adaptive"
[mem]
arena_mib = 32
conn_arena_mib = 8
[rpc]
credits = 32
timeout_ms = 60000
[verbs]
ack_timeout = 20
connect_timeout_ms = 20000
END
    sed 's/^credits/segment_bytes = 69632\ncredits/' /run/plain.toml >/run/segments.toml
    sed 's/^conn_arena_mib = 8/conn_arena_mib = 1/; s/^arena_mib = 32/arena_mib = 4/; s/^credits/max_read_bytes = 65536\nmax_write_bytes = 65536\ncredits/' /run/plain.toml >/run/many.toml
}

# port_of PROFILE: where its server listens.
port_of() {
    case $1 in plain) echo 7100 ;; segments) echo 7101 ;; many) echo 7102 ;; esac
}

# spinperf_up ADDRESS PROFILE CORES OPTION...: a server.
spinperf_up() {
    local port
    port=$(port_of "$2")
    serve "$port" "${bin:?}/spinperf" serve --address "rdma://$1:$port" --profile "/run/$2.toml" --cores "$3" "${@:4}"
}

# load ADDRESS PROFILE OPTION...: a run in which every byte is verified at both ends. Of seconds, it has
# minutes, for a host that does other work.
load() {
    local address=$1 profile=$2
    shift 2
    timeout 300 "${bin:?}/spinperf" run --address "rdma://$address:$(port_of "$profile")" --profile "/run/$profile.toml" \
        --verify full --warmup 0ms --duration 120s "$@"
}

# load_up ADDRESS CONNECTIONS: reads in the background, until the server $spinperf has all its
# connections. The client is $client, and writes to /run/client.
load_up() {
    "${bin:?}/spinperf" run --address "rdma://$1:7100" --profile /run/plain.toml --cores 1 --op read \
        --size 64K --depth 4 --connections "$2" --verify full --duration 600s >/run/client 2>&1 &
    # shellcheck disable=SC2034 # for the caller
    client=$!
    wait_for 120 connected $(($2 + 1)) # one is for spinperf's own questions
}

# connected COUNT: so many queue pairs of the server's. The kernel names the thread that made one.
connected() {
    local thread count=0
    for thread in $(rdma resource show qp | sed -n 's/.* state RTS .* pid \([0-9]*\) .*/\1/p'); do
        [ ! -e "/proc/${spinperf:?}/task/$thread" ] || count=$((count + 1))
    done
    [ $count -ge "$1" ]
}

# client_said PATTERN: the client of load_up ended with an error that says so.
client_said() {
    wait_for 120 ended "${client:?}"
    cat /run/client
    must_fail wait "$client"
    grep -qEi "$1" /run/client
}

# job ADDRESS|URL PROFILE KEY=VALUE...: runs of one process, each a line of keys from standard input, with what load has and
# the keys that are the same for all. To start a process takes seconds in emulation.
job() {
    local line number=0 url=$1
    [[ $url == *://* ]] || url=rdma://$url:$(port_of "$2")
    {
        printf 'schema = 1\n[defaults]\n'
        keys address="$url" profile="/run/$2.toml" verify=full warmup=0ms duration=120s "${@:3}"
        while read -r line; do
            printf '[[run]]\nname = "run-%d"\n' $((++number))
            # shellcheck disable=SC2086 # keys are words
            keys $line
        done
    } >/run/job.toml
    timeout 600 "${bin:?}/spinperf" job /run/job.toml
}

# keys KEY=VALUE...: lines of TOML; values are true, lists or strings.
keys() {
    local key
    for key; do
        case ${key#*=} in
            true | \[*) echo "${key/=/ = }" ;;
            *) printf '%s = "%s"\n' "${key%%=*}" "${key#*=}" ;;
        esac
    done
}

# many_connections NAME ADDRESS CORES
many_connections() {
    check "$1: 100 connections, 2 cores" load "$2" many --connections 50 --calls "$(either 200 500)" --depth 4 --cores "$3"
}

# operations NAME ADDRESS: all of them, small, large and deep.
operations() {
    local op
    check "$1: all operations, small, large and deep" job "$2" plain cores=0 < <(
        echo 'op=null calls=100'
        for op in echo read write; do
            printf "op=$op %s\n" "size=64,4K calls=$(either 40 100)" "depth=32 calls=$(either 100 300)" "size=1MiB calls=$(either 2 4)"
        done
    )
    check "$1: 1 MiB in 16 segments" job "$2" segments cores=0 size=1MiB depth=4 calls="$(either 4 8)" <<<$'op=echo\nop=read\nop=write'
}

# both_ways NAME ADDRESS: calls in both directions of one connection at once (RFC 8167).
both_ways() {
    check "$1: all operations in both directions" job "$2" plain cores=0 bidir=true <<END
op=null depth=64 calls=$(either 200 500)
size=20000 depth=4 calls=$(either 40 100)
op=read size=256K depth=2 calls=$(either 20 50)
op=write size=256K depth=2 calls=$(either 20 50)
END
}
