# A program of ours: see own in ../parse.awk.
{ value[$1] = $2 }
END {
    if (refused) exit 1
    own(value)
}
