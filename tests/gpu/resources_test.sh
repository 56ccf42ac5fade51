#!/usr/bin/env bash
# Reads ptxas's reports of the kernels: none may use local memory or spill registers, nor have its warpgroup products run one
# by one, which ptxas does (and says) where it cannot tell that nothing else touches their registers meanwhile.
set -euo pipefail

# Prints a line for each kernel with a stack or spills; the last line is the number of kernels.
check() {
  awk '/Function properties for/ { name = $NF; kernels++ }
       /wgmma.*serialized/ { print }
       /bytes stack frame/ { if ($1 != 0 || $5 != 0 || $9 != 0) print name ": " $0 }
       END { print kernels + 0 }' "$@"
}

# The check itself can fail.
serialized='ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to a reason'
[ "$(check <<<"$serialized")" = "$serialized"$'\n0' ] || { echo "the check missed serialized products"; exit 1; }
planted=$(printf 'ptxas info : Function properties for good\n 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info : Function properties for bad\n 8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n' | check)
[ "$planted" = $'bad:  8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n2' ] ||
  { echo "the check missed a planted spill: $planted"; exit 1; }

reports=()
for file in "$@"; do
  case "$file" in *.ptxas.txt) reports+=("$file") ;; esac
done
[ ${#reports[@]} -gt 0 ] || { echo "no reports"; exit 1; }
for report in "${reports[@]}"; do
  result=$(check "$report")
  [ "$(tail -n 1 <<<"$result")" -gt 0 ] || { echo "$report names no kernel"; exit 1; }
  [ "$(wc -l <<<"$result")" -eq 1 ] || { printf 'local memory in %s:\n%s\n' "$report" "$result"; exit 1; }
done
echo "${#reports[@]} files without local memory"
