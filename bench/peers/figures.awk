# Reads the facts that run collects, for table.awk and json.awk:
#
#   host KEY TEXT                     about the machine and the run
#   row ROW                           in the order of the table
#   about ROW KEY TEXT                beside, operation, reported, differs (any number of times)
#   status ROW absent|failed TEXT     reason for missing figures: packages, or the tool's message
#   figure ROUND ROW KEY VALUE PLACEMENT
#                                     KEY is version, note (like differs; both without a placement), or one of KEYS; PLACEMENT
#                                     is one of PLACEMENTS, or "moved": the cores were not as far apart before as after it
BEGIN {
    split("round_trip_ns rate_per_second bandwidth_bytes_per_second", KEYS, " ")
    keys = 3
    split("threads near far -", PLACEMENTS, " ")
    placements = 4
    titles["threads"] = "one core\047s threads (cache line below 85 ns)"
    titles["near"] = "near (cache line 85 to 250 ns)"
    titles["far"] = "far (cache line above 250 ns)"
    titles["-"] = "in the guest"
}

function rest(n,    text) {
    text = $0
    while (n-- > 0) sub(/^[^ ]+ /, "", text)
    return text
}

$1 == "host" { host[$2] = rest(2) }
$1 == "row" { names[++rows] = $2; known[$2] = 1 }
$1 == "about" && $3 == "differs" { differs[$2, ++differences[$2]] = rest(3); next }
$1 == "about" { about[$2, $3] = rest(3) }
$1 == "status" { state[$2] = $3; why[$2] = rest(3) }
$1 == "figure" && !($3 in known) { unknown("row " $3) }
$1 == "figure" && $4 == "version" { version[$3] = $5; next }
$1 == "figure" && $4 == "note" {
    if (!(($3, rest(4)) in noted)) differs[$3, ++differences[$3]] = rest(4)
    noted[$3, rest(4)] = 1
    next
}
$1 == "figure" {
    if ($4 != KEYS[1] && $4 != KEYS[2] && $4 != KEYS[3]) unknown("key " $4)
    if ($5 !~ /^[0-9.]+(e[-+]?[0-9]+)?$/ || $5 + 0 <= 0) unknown("value " $5 " of " $3)
    if ($2 > rounds) rounds = $2
    has_figures[$3] = 1
    if ($6 == "moved") { moved[$3]++; next }
    if (!($6 in titles)) unknown("placement " $6 " of " $3)
    figures[$3, $4, $2, $6] = $5
    placed[$3, $6] = 1
    met[$6] = 1
}

function unknown(what) {
    print "peers: a peer printed an unknown " what > "/dev/stderr"
    broken = 1
    exit 1
}

# collect(): fills values[1..n] with a row's figures at a placement, or with their ratios to those of another row, or
# another key, in the same round; returns n.
function collect(row, key, base, at,    round, n) {
    n = 0
    for (round = 1; round <= rounds; round++) {
        if (!((row, key, round, at) in figures)) continue
        if (base != "" && !((base, key, round, at) in figures)) continue
        values[++n] = figures[row, key, round, at] / (base == "" ? 1 : figures[base, key, round, at])
    }
    return n
}

function sort_values(n,    i, j, v) {
    for (i = 2; i <= n; i++) {
        v = values[i]
        for (j = i; j > 1 && values[j - 1] > v; j--) values[j] = values[j - 1]
        values[j] = v
    }
}

# median(): median of the collected values, which it sorts.
function median(n) {
    sort_values(n)
    return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2
}

# ratio(): ratio to the row that this one is compared with; 0 without one.
function ratio(row, key, at,    n) {
    n = collect(row, key, about[row, "beside"], at)
    return n ? median(n) : 0
}
