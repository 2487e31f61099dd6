# JSON, a key on each line: spinperf floor's for the round trip, in nanoseconds; iperf3's for the bandwidth, in bits per second, of
# which what was received counts.
{
    key = $1
    gsub(/[":]/, "", key)
    if (key == "probe") probe = $2
    if (key == "sum_received") received = 1
    if (key == "median" || (received && !(key in value))) value[key] = $2 + 0
}

END {
    if (refused) exit 1
    if (what == "round_trip") {
        if (probe !~ /^"tcp_round_trip"/) refuse("it is not the round trip over TCP: " probe)
        figure("round_trip_ns", value["median"])
    }
    if (what == "bandwidth") {
        agree("bits/s and bytes", value["bits_per_second"] * value["seconds"], 8 * value["bytes"], 0.01)
        at_most("its time in the elapsed time", value["seconds"], elapsed_s)
        figure("bandwidth_bytes_per_second", value["bits_per_second"] / 8)
    }
}
