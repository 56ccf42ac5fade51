# Prints the source `target` with its mutations put in: awk -v target=router/x.cc -f mutate.awk mutations.txt x.cc
# Fails unless each of them finds its line exactly once, so that the list cannot rot.
function trimmed(s) { sub(/^[ \t]+/, "", s); sub(/[ \t]+$/, "", s); return s }
FNR == 1 { part++; if (part == 2) print "#include \"tests/sim/mutation.h\"" }
part == 1 && /^@ / { mine = ($2 == target); next }
part == 1 && /^-/ { if (mine) from = trimmed(substr($0, 2)); next }
part == 1 && /^\+/ { if (mine) { to[from] = trimmed(substr($0, 2)); found[from] = 0 } next }
part == 1 { next }
{
  line = trimmed($0)
  if (line in to) { found[line]++; print to[line] } else print
}
END {
  for (f in found) if (found[f] != 1) {
    print "mutations.txt: " target ": found " found[f] " times: " f > "/dev/stderr"
    exit 1
  }
}
