# shellcheck shell=bash
# What Wireshark finds in the capture of a pair's wire. Sourced by the scenarios that read one.

# frames PCAP FILTER: how many frames it matches.
frames() {
    "${guest:?}/tshark" -r "$1" -Y "$2" | wc -l
}

# fields PCAP FILTER FIELD...: a line for each frame, with tabs between the fields.
fields() {
    local pcap=$1 filter=$2 options=() field
    shift 2
    for field in "$@"; do
        options+=(-e "$field")
    done
    "$guest/tshark" -r "$pcap" -Y "$filter" -T fields "${options[@]}"
}

# Wireshark expects the data of an NFS reply in the reply, and calls one malformed whose data went
# by Write chunk (RFC 8267 section 4.2), whoever sent it. Its RPC-over-RDMA header is decoded before.
# shellcheck disable=SC2034 # for those who source this
readonly DATA_BY_WRITE_CHUNK='nfs && rpc.msgtyp == 1 && rpcordma.writes_count > 0'

# well_formed PCAP FILTER: some frames match, and of them none is malformed but by that mistake.
well_formed() {
    local all bad
    all=$(frames "$1" "$2")
    bad=$(frames "$1" "($2) && _ws.malformed && !($DATA_BY_WRITE_CHUNK)")
    echo "$all frames of $2, malformed $bad"
    [ "$all" -gt 0 ] && [ "$bad" = 0 ]
}
