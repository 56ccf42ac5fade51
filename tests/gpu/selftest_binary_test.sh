#!/usr/bin/env bash
# The self-test as one would copy it to another machine: small, with no library but the system's own and the driver. Where there is no
# GPU it must say so; where there is one it must pass.
set -uo pipefail
binary=$1
bytes=$(stat -Lc %s "$binary")
[ "$bytes" -lt $((40 << 20)) ] || { echo "$bytes bytes: more than 40 MB"; exit 1; }
if ldd "$binary" | grep -vE 'linux-vdso|ld-linux|lib(c|m|dl|rt|pthread)\.so'; then
  echo "linked with a library that the other machine may not have"
  exit 1
fi
output=$("$binary" 2>&1)
status=$?
printf '%s\n' "$output"
case $status in
  0) ;;
  2) grep -q 'no GPU: UNAVAILABLE' <<<"$output" || { echo "it does not say why"; exit 1; } ;;
  *) echo "status $status"; exit 1 ;;
esac
