# spinperf's JSON: times in nanoseconds, full round trips. There is one row with one repeat; the medians
# come after it, each key before those of its parts.
/"median": \{/ { median = 1 }
$1 == "\"schema\":" || $1 == "\"elapsed_s\":" || median {
    key = $1
    gsub(/[":]/, "", key)
    if (!(key in value)) value[key] = $2
}

function number(key,    text) {
    text = value[key]
    sub(/,$/, "", text)
    return text + 0
}

END {
    if (refused) exit 1
    # The keys read here are the same in all.
    if (value["schema"] !~ /^"spinperf\/[123]",$/) refuse("its schema is none of spinperf/1 to spinperf/3: " value["schema"])
    if (number("calls") < 1) refuse("no call was answered")
    mean_s = number("elapsed_s") / number("calls")
    agree("calls/s and the mean", number("calls_per_second") * mean_s, 1, 0.02)
    if (what == "round_trip") {
        # Half of all calls take at least the median.
        at_most("half a p50 in the mean", number("p50_ns") / 2, mean_s * 1e9)
        figure("round_trip_ns", number("p50_ns"))
    }
    if (what == "rate") figure("rate_per_second", number("calls_per_second"))
    if (what == "bandwidth") {
        agree("bytes/s", number("bytes_per_second"), number("calls_per_second") * 1048576, 0.01)
        figure("bandwidth_bytes_per_second", number("bytes_per_second"))
    }
}
