#!/usr/bin/env bash
# Passes when the thread sanitizer reports the planted race, in our own function. Only meaningful under --config=tsan.
set -u
output=$("$1" 2>&1)
code=$?
printf '%s\n' "$output"
[ "$code" -ne 0 ] || { echo "FAILED: the race was not reported"; exit 1; }
grep -q 'WARNING: ThreadSanitizer: data race' <<<"$output" || { echo "FAILED: no data race in the report"; exit 1; }
grep -q 'Work tests/sanitizers/planted_race.cc' <<<"$output" || { echo "FAILED: the report does not name our function"; exit 1; }
! grep -q 'MutexLock' <<<"$(grep -A3 'data race' <<<"$output")" || { echo "FAILED: the guarded counter was reported"; exit 1; }
