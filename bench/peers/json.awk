# The document for programs, schema spinperf-peers/2. Reads the data of figures.awk.
function quoted(text) {
    gsub(/\\/, "\\\\", text)
    gsub(/"/, "\\\"", text)
    gsub(/[\001-\037]/, " ", text)
    return "\"" text "\""
}

# list(): a row's values, or their ratios, with median and spread. Prints the values first, because
# sorting loses the order of the rounds.
function list(row, key, base, at,    n, i, text) {
    n = collect(row, key, base, at)
    for (i = 1; i <= n; i++) text = text (i > 1 ? ", " : "") sprintf("%.6g", values[i])
    return n ? sprintf("{\"median\": %.6g, \"min\": %.6g, \"max\": %.6g, \"values\": [%s]}", median(n), values[1], values[n], text) : ""
}

function lists(row, base, at,    i, text, one) {
    for (i = 1; i <= keys; i++) {
        one = list(row, KEYS[i], base, at)
        if (one != "") text = text (text == "" ? "" : ", ") sprintf("\"%s\": %s", KEYS[i], one)
    }
    return "{" text "}"
}

# parts(): the figures of a row by placement.
function parts(row,    i, at, text) {
    for (i = 1; i <= placements; i++) {
        at = PLACEMENTS[i]
        if (!((row, at) in placed)) continue
        text = text (text == "" ? "" : ",") "\n        {\"placement\": " quoted(at == "-" ? "guest" : at) \
            ",\n         \"figures\": " lists(row, "", at) ",\n         \"ratios\": " lists(row, about[row, "beside"], at) "}"
    }
    return "[" text (text == "" ? "]" : "\n      ]")
}

function texts(row,    i, text) {
    for (i = 1; i <= differences[row]; i++) text = text (i > 1 ? ", " : "") quoted(differs[row, i])
    return "[" text "]"
}

function item(row) {
    return "    {\n" \
        "      \"name\": " quoted(row) ",\n" \
        "      \"status\": " quoted(row in state ? state[row] : "measured") ",\n" \
        "      \"reason\": " (row in state ? quoted(why[row]) : "null") ",\n" \
        "      \"version\": " (row in version ? quoted(version[row]) : "null") ",\n" \
        "      \"operation\": " quoted(about[row, "operation"]) ",\n" \
        "      \"reported\": " quoted(about[row, "reported"]) ",\n" \
        "      \"beside\": " quoted(about[row, "beside"]) ",\n" \
        "      \"differs\": " texts(row) ",\n" \
        "      \"moved\": " (row in moved ? moved[row] : 0) ",\n" \
        "      \"placements\": " parts(row) "\n" \
        "    }"
}

END {
    if (broken) exit 1
    print "{"
    print "  \"schema\": \"spinperf-peers/2\","
    printf "  \"environment\": {\"cpu\": %s, \"kernel\": %s, \"date\": %s, \"client_core\": %d, \"server_core\": %d},\n",
        quoted(host["cpu"]), quoted(host["kernel"]), quoted(host["date"]), host["client_core"], host["server_core"]
    printf "  \"interference\": {\"load_average_before\": %s, \"load_average_after\": %s, \"steal_ms\": %d},\n",
        host["load_before"], host["load_after"], host["steal_ms"]
    printf "  \"rounds\": %d,\n", host["repeats"]
    print "  \"rows\": ["
    for (i = 1; i <= rows; i++) print item(names[i]) (i < rows ? "," : "")
    print "  ]"
    print "}"
}
