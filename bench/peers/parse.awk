# Functions shared by the parsers of all peers. parse sets `peer` and `what`.

# refuse(): exits without a figure.
function refuse(why) {
    printf "%s: %s: %s\n", peer, what, why > "/dev/stderr"
    refused = 1
    exit 1
}

# agree(): two redundant figures differ by no more than rounding.
function agree(name, a, b, tolerance) {
    if (a <= 0 || b <= 0) refuse(name ": not positive: " a ", " b)
    if (a > b * (1 + tolerance) || b > a * (1 + tolerance)) refuse(name ": " a " is not " b ", one has another unit")
}

# rounding(): relative error of a figure that is printed with two decimals.
function rounding(value) {
    return value > 0 ? 0.005 / value : 0
}

# at_most(): a part does not exceed its whole.
function at_most(name, a, b) {
    if (a <= 0 || a > b * 1.02) refuse(name ": " a " does not fit in " b)
}

# figure(): prints KEY VALUE, unless there was an error. Called by END, which also runs after exit.
function figure(key, value) {
    if (refused) exit 1
    if (!(value > 0)) refuse("no figure for " key)
    printf "%s %.6g\n", key, value
}

# own(): the figure of a program of ours, which prints KEY VALUE lines: count, elapsed_ns and
# rate_per_second; depth, the operations in flight; min_ns and p50_ns of full round trips, if depth is
# 1; bytes of an operation, if it is a transfer.
function own(value) {
    agree("rate", value["rate_per_second"], 1e9 * value["count"] / (value["elapsed_ns"] > 0 ? value["elapsed_ns"] : 1), 0.01)
    at_most("its time in the elapsed time", value["elapsed_ns"] / 1e9, elapsed_s)
    if (what == "round_trip") {
        if (value["depth"] != 1) refuse("depth is not 1")
        at_most("the shortest and the median", value["min_ns"], value["p50_ns"])
        # Half of all calls take at least the median.
        at_most("half a p50 in the mean", value["p50_ns"] / 2, value["elapsed_ns"] / value["count"])
        figure("round_trip_ns", value["p50_ns"])
    }
    if (what == "rate") {
        if (value["depth"] != 32) refuse("depth is not 32")
        figure("rate_per_second", value["rate_per_second"])
    }
    if (what == "bandwidth") {
        if (value["bytes"] != 1048576) refuse("bytes is not 1 MiB")
        figure("bandwidth_bytes_per_second", value["rate_per_second"] * value["bytes"])
    }
}
