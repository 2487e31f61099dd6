# fi_pingpong and fabtests: `usec/xfer` is the time of one message, which is half a round trip if there
# is one; MB are 10^6 bytes. Three figures are redundant, each with two decimals: those of fast messages
# differ by more than a few percent (0.10 s for 104 ms), and the largest is the most precise. Sizes and
# counts are abbreviated (1m, 200k), so the caller passes them, with the messages (ways) per iteration.
$1 == "bytes" && /time +MB\/sec +usec\/xfer +Mxfers\/sec$/ { units = 1; next }
units && NF >= 7 && $(NF - 3) ~ /s$/ { time_s = $(NF - 3) + 0; mb = $(NF - 2); usec = $(NF - 1); mrate = $NF; size = $1 }

# abbreviated(): a size as both tools print it.
function abbreviated(n) {
    if (n >= 1048576 && n % 1048576 == 0) return n / 1048576 "m"
    if (n >= 1024 && n % 1024 == 0) return n / 1024 "k"
    return n ""
}

END {
    if (refused) exit 1
    if (!units) refuse("its heading does not name time, MB/sec, usec/xfer and Mxfers/sec")
    if (size != abbreviated(bytes)) refuse("it sent " size " bytes, not " bytes)
    agree("MB/sec and usec/xfer", mb, bytes / (usec > 0 ? usec : 1), 0.02 + rounding(mb) + rounding(usec))
    # This also tells a half round trip from a full one.
    agree("time and usec/xfer", time_s, count * ways * usec / 1e6, 0.03 + rounding(time_s) + rounding(usec))
    at_most("its time in that which was taken", time_s, elapsed_s)
    if (what == "round_trip") {
        if (ways != 2) refuse("no round trip")
        figure("round_trip_ns", 2000 * (usec > mb ? usec : bytes / mb))
    }
    if (what == "rate") figure("rate_per_second", count / time_s)
    if (what == "bandwidth") figure("bandwidth_bytes_per_second", mb * 1e6)
}
