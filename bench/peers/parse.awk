# What the parsers of all peers share. `peer` and `what` are set by parse.

# refuse(): ends without a figure.
function refuse(why) {
    printf "%s: %s: %s\n", peer, what, why > "/dev/stderr"
    refused = 1
    exit 1
}

# agree(): two figures that say the same thing differ by no more than rounding does.
function agree(name, a, b, tolerance) {
    if (a <= 0 || b <= 0) refuse(name ": not positive: " a ", " b)
    if (a > b * (1 + tolerance) || b > a * (1 + tolerance)) refuse(name ": " a " is not " b ", one has another unit")
}

# at_most(): a figure is not larger than what it is a part of.
function at_most(name, a, b) {
    if (a <= 0 || a > b * 1.02) refuse(name ": " a " does not fit in " b)
}

# figure(): KEY VALUE, if nothing was wrong. Called by END, which runs after exit as well.
function figure(key, value) {
    if (refused) exit 1
    if (!(value > 0)) refuse("no figure for " key)
    printf "%s %.6g\n", key, value
}
