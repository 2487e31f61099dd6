#!/usr/bin/env python3
"""Lists the cache lines that one core writes and another one touches, from a trace of lackey's on standard input.

    lines.py PRINTED CALLS <TRACE

PRINTED is what engine/examples/cores.rs printed. CALLS is the number of calls of each core in the trace. A line counts as
shared per call if one core writes it in at least every hundredth of its calls, and another core touches it as often. Called by run,
which explains the whole. Exit status: 0 no line is shared, 1 some are, 2 the trace is not usable."""

import sys

# Processors fetch lines of 64 bytes in pairs.
PAIR_BITS = 7
PARTS = 100
LINES_AT_ONCE = 10_000


def marks(path):
    """The addresses of the marks: those that begin a turn, with the index of its core; the end of a turn; the start of the
    count. None as long as the program has not printed them all."""
    words = dict(line.rstrip("\n").split(" ", 1) for line in open(path) if " " in line and line.endswith("\n"))
    if "count" not in words:
        return None
    begin = {int(address, 16): core for core, address in enumerate(words["begin"].split())}
    return begin, int(words["end"], 16), int(words["count"], 16)


def touches(trace, printed):
    """How often each core has written and read each pair of lines in its turns, and the turns: all from `count` on."""
    # Long before the first turn.
    found, lines = None, LINES_AT_ONCE
    while found is None and lines == LINES_AT_ONCE:
        lines = sum(1 for _ in zip(range(LINES_AT_ONCE), trace))
        found = marks(printed)
    begin, end, count = found or ({}, 0, 0)
    written, read, turns = {}, {}, [0] * len(begin)
    core, counts = None, False
    for line in trace:
        if line[:1] != " ":
            continue
        kind = line[1]
        address = int(line[3 : line.index(",")], 16)
        if kind != "L" and address in begin:
            core = begin[address]
            turns[core] += counts
        elif kind != "L" and address == end:
            core = None
        elif kind != "L" and address == count:
            counts = True
        elif core is not None and counts:
            pair = address >> PAIR_BITS
            for table in (written, read) if kind == "M" else (written,) if kind == "S" else (read,):
                row = table.get(pair)
                if row is None:
                    row = table[pair] = [0] * len(begin)
                row[core] += 1
    return written, read, turns


def shared(written, read, least):
    for pair, writes in sorted(written.items()):
        reads = read.get(pair, [0] * len(writes))
        writers = [core for core, number in enumerate(writes) if number >= least]
        users = [core for core in range(len(writes)) if writes[core] + reads[core] >= least]
        if writers and len(users) > 1:
            yield pair, writes, reads


def main():
    printed, calls = sys.argv[1], int(sys.argv[2])
    written, read, turns = touches(sys.stdin, printed)
    own = sum(1 for row in written.values() if max(row) * PARTS >= calls)
    if min(turns, default=0) == 0 or own == 0:
        print("sharing: a core has no turn in the trace, or writes nothing", file=sys.stderr)
        sys.exit(2)
    print(f"{sum(turns)} turns of {len(turns)} cores; {own} pairs of lines written in at least every hundredth call")
    found = list(shared(written, read, calls // PARTS))
    for pair, writes, reads in found:
        print(f"shared: {pair << PAIR_BITS:#x} written {writes}, read {reads}")
    print(f"{len(found)} of them touched by another core as often")
    sys.exit(1 if found else 0)


main()
