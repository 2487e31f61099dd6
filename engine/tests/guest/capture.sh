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

# Two mistakes of Wireshark's with NFS replies of any server. It expects their data in the reply
# and calls one malformed whose data went by Write chunk (RFC 8267 section 4.2). And over RoCE it puts
# a Reply chunk together wrongly that was filled by several RDMA Writes, as the kernel's server does.
# The RPC-over-RDMA headers of both are decoded before.
readonly DATA_BY_WRITE_CHUNK='nfs && rpc.msgtyp == 1 && rpcordma.writes_count > 0'
readonly REPLY_IN_PIECES='nfs && rpc.msgtyp == 1 && rpcordma.fragment.overlap.conflicts'
# A busy host has tcpdump miss packets. What follows the gap begins in the middle.
readonly BEHIND_A_GAP='tcp.analysis.lost_segment'

# well_formed PCAP FILTER: some frames match, and of them none is malformed but by those mistakes and behind gaps.
well_formed() {
    local all bad
    all=$(frames "$1" "$2")
    bad=$(frames "$1" "($2) && _ws.malformed && !($DATA_BY_WRITE_CHUNK) && !($REPLY_IN_PIECES) && !($BEHIND_A_GAP)")
    echo "$all frames of $2, malformed $bad"
    [ "$all" -gt 0 ] && [ "$bad" = 0 ]
}
