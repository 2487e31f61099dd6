# The table for people. Reads the data of figures.awk.
BEGIN {
    WIDTH = 118
    FORMAT = "%-17s  %-20s  %-10s  %s  %s  %s\n"
    CELL = 26
    FEW = 3
    scale["round_trip_ns"] = 1e-3
    scale["rate_per_second"] = 1e-6
    scale["bandwidth_bytes_per_second"] = 1e-9
}

# digits(): three significant digits. A byte is one column here, except for the micro sign.
function digits(value) {
    if (value >= 100) return sprintf("%.0f", value)
    if (value >= 10) return sprintf("%.1f", value)
    if (value >= 1) return sprintf("%.2f", value)
    if (value >= 0.01) return sprintf("%.3f", value)
    return sprintf("%.2g", value)
}

# cell(): "median (min-max) ratio", with the ratio right-aligned.
function cell(row, key, at,    n, middle, text) {
    n = collect(row, key, "", at)
    if (!n) return sprintf("%-" CELL "s", "-")
    middle = median(n)
    text = digits(middle * scale[key])
    if (n > 1) text = text " (" digits(values[1] * scale[key]) "-" digits(values[n] * scale[key]) ")"
    return sprintf("%-" (CELL - 6) "s%6s", text, ratio(row, key, at) ? digits(ratio(row, key, at)) "x" : "-")
}

function line(row, at) {
    printf FORMAT, row, about[row, "operation"], about[row, "reported"], cell(row, KEYS[1], at), cell(row, KEYS[2], at), cell(row, KEYS[3], at)
}

# part(): the rows of a placement, and which of them have too few rounds to say much.
function part(at,    i, key, n, few) {
    printf "\n%s\n", titles[at]
    for (i = 1; i <= rows; i++) {
        if (!((names[i], at) in placed)) continue
        line(names[i], at)
        n = rounds
        for (key = 1; key <= keys; key++) {
            most = collect(names[i], KEYS[key], "", at)
            if (most && most < n) n = most
        }
        if (n < FEW && n < rounds) few = few (few == "" ? "" : ", ") names[i] " " n
    }
    goal(at)
    if (few != "") wrapped("Too few of " rounds " rounds to rely on: " few ". More come with --repeats.", 4)
}

# missing(): rows without any figure, and figures that were left out.
function missing(    i, row, left) {
    for (i = 1; i <= rows; i++) {
        row = names[i]
        if ((row in state) && !(row in has_figures))
            printf "%-17s  %s: %s\n", row, state[row] == "absent" ? "not installed; Debian packages" : "failed", why[row]
        if (row in moved) left = left (left == "" ? "" : ", ") moved[row] " of " row
    }
    if (left != "") wrapped("Left out, because the cores were not as far apart before as after: " left ".", 0)
}

# wrapped(): prints text indented and wrapped at WIDTH.
function wrapped(text, indent,    words, n, i, line_now) {
    n = split(text, words, " ")
    for (i = 1; i <= n; i++) {
        if (line_now != "" && indent + length(line_now) + 1 + length(words[i]) > WIDTH) {
            printf "%" indent "s%s\n", "", line_now
            line_now = ""
        }
        line_now = line_now (line_now == "" ? "" : " ") words[i]
    }
    printf "%" indent "s%s\n", "", line_now
}

function notes(row,    i) {
    printf "\n%s%s\n", row, row in version ? " " version[row] : ""
    if (row in state) wrapped("Failed in a round; the figures are those of the others: " why[row], 4)
    for (i = 1; i <= differences[row]; i++) wrapped(differs[row, i], 4)
}

# The performance goal of spinrpc compared with UCX.
function goal(at,    n) {
    n = collect("spinperf-null", KEYS[2], "ucx", at)
    if (n) printf "null calls for each UCX message: %.2f in %d rounds\n", median(n), n
}

END {
    if (broken) exit 1
    printf "medians of %d round%s (min-max), client on core %d, server on core %d\n", host["repeats"],
        host["repeats"] == 1 ? "" : "s", host["client_core"], host["server_core"]
    printf "%s, kernel %s, %s; load %s before and %s after, %d ms stolen from the two cores\n\n", host["cpu"],
        host["kernel"], host["date"], host["load_before"], host["load_after"], host["steal_ms"]
    printf FORMAT, "", "an operation is", "latency is", sprintf("%-" (CELL + 1) "s", "64 B round trip, µs"),
        sprintf("%-" CELL "s", "64 B operations/s, 10^6"), "1 MiB, 10^9 bytes/s"
    printf FORMAT, "tool", "a ...", "printed as", sprintf("%-" CELL "s", "(all full)"), sprintf("%-" CELL "s", "32 in flight"), ""
    for (i = 1; i <= placements; i++) if (PLACEMENTS[i] in met) part(PLACEMENTS[i])
    print ""
    missing()
    print "x: times spinperf's of the same round (on a device: spinperf's on that device)"
    for (i = 1; i <= rows; i++) if (!(names[i] in state) || names[i] in has_figures) notes(names[i])
}
