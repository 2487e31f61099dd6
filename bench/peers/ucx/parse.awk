# ucx_perftest: half round trips in microseconds; its MB is 2^20 bytes. The last line has
# iterations, latency (p50, average, overall), bandwidth and rate (average, overall each).
/overhead \(usec\)|latency \(usec\)/ && /bandwidth \(MB\/s\)/ && /message rate \(msg\/s\)/ { units = 1 }
/50\.0%ile/ { rank = 1 }
NF >= 8 && $NF ~ /^[0-9.]+$/ { p50_us = $(NF - 6); overall_us = $(NF - 4); mib = $(NF - 2); rate = $NF; made = $(NF - 7) }

END {
    if (refused) exit 1
    if (!units || !rank) refuse("its heading names other units than usec, MB/s and msg/s, or no 50.0%ile")
    agree("iterations", made, count, 0)
    agree("msg/s and overall usec", rate, 1e6 / (overall_us > 0 ? overall_us : 1), 0.03)
    agree("MB/s and msg/s", mib, rate * bytes / 1048576, 0.03)
    if (what == "round_trip") {
        # If it printed full round trips, this would exceed its running time.
        at_most("all round trips in the time that was taken", 2e-6 * overall_us * count, elapsed_s)
        at_most("half a p50 in the mean", p50_us / 2, overall_us)
        figure("round_trip_ns", 2000 * p50_us)
    }
    at_most("all messages in the time that was taken", count / rate, elapsed_s)
    if (what == "rate") figure("rate_per_second", rate)
    if (what == "bandwidth") figure("bandwidth_bytes_per_second", mib * 1048576)
}
