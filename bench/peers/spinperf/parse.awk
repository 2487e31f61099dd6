# spinperf's JSON: times in nanoseconds, full round trips; the medians of a single repeat.
function number(text) {
    sub(/,$/, "", text)
    return text + 0
}

$1 == "\"schema\":" { schema = $2 }
$1 == "\"elapsed_s\":" { elapsed_s = number($2) }
/"median": \{/ { median = 1 }
median && $1 == "\"calls\":" { calls = number($2) }
median && $1 == "\"calls_per_second\":" { rate = number($2) }
median && $1 == "\"bytes_per_second\":" { bandwidth = number($2) }
median && $1 == "\"p50_ns\":" { p50_ns = number($2) }

END {
    if (refused) exit 1
    if (schema != "\"spinperf/1\",") refuse("this is not schema spinperf/1: " schema)
    agree("calls/s", rate, calls / (elapsed_s > 0 ? elapsed_s : 1), 0.02)
    if (what == "round_trip") {
        # Half of all calls take at least the median.
        at_most("half a p50 in the mean", p50_ns / 2, elapsed_s * 1e9 / calls)
        figure("round_trip_ns", p50_ns)
    }
    if (what == "rate") figure("rate_per_second", rate)
    if (what == "bandwidth") {
        agree("bytes/s", bandwidth, rate * 1048576, 0.01)
        figure("bandwidth_bytes_per_second", bandwidth)
    }
}
