# perftest: half round trips in microseconds; its MB is 2^20 bytes.
/#bytes +#iterations +t_min\[usec\] +t_max\[usec\] +t_typical\[usec\] +t_avg\[usec\]/ { kind = "latency"; next }
/#bytes +#iterations +BW peak\[MB\/sec\] +BW average\[MB\/sec\] +MsgRate\[Mpps\]/ { kind = "bandwidth"; next }
kind == "latency" && $1 == bytes { made = $2; least = $3; typical = $5; average = $6 }
kind == "bandwidth" && $1 == bytes { made = $2; mib = $4; mpps = $5 }

END {
    if (refused) exit 1
    if (!kind || !made) refuse("its heading names other units than usec, MB/sec and Mpps, or it sent no " bytes " bytes")
    agree("iterations", made, count, 0)
    if (what == "round_trip") {
        if (kind != "latency") refuse("no latency")
        at_most("the shortest and the median", least, typical)
        at_most("half a median in the mean", typical / 2, average)
        at_most("all round trips in the time that was taken", 2e-6 * average * count, elapsed_s)
        figure("round_trip_ns", 2000 * typical)
    } else {
        if (kind != "bandwidth") refuse("no bandwidth")
        # It rounds the rate to whole messages per second.
        if (mpps >= 1e-4) agree("MB/sec and Mpps", mib, mpps * 1e6 * bytes / 1048576, 0.05)
        at_most("all bytes in the time that was taken", count * bytes / (mib * 1048576), elapsed_s)
        if (what == "rate") figure("rate_per_second", mpps * 1e6)
        if (what == "bandwidth") figure("bandwidth_bytes_per_second", mib * 1048576)
    }
}
