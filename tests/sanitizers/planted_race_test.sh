#!/usr/bin/env bash
# planted_race_test.sh PROGRAM FUNCTION [ARGUMENT]: passes when the thread sanitizer reports the race in FUNCTION, and
# nothing else. Without FUNCTION nothing may be reported. Only meaningful under --config=tsan.
set -u
program=$1 function=$2
shift 2
output=$("$program" "$@" 2>&1)
code=$?
printf '%s\n' "$output"
fail() { echo "FAILED: $1"; exit 1; }
if [ "$function" = none ]; then
  [ "$code" -eq 0 ] || fail "exit code $code although there is no race"
  exit 0
fi
[ "$code" -ne 0 ] || fail "the race was not reported"
grep -q 'WARNING: ThreadSanitizer: data race' <<<"$output" || fail "no data race in the report"
# With or without line numbers, which the symbolizer does not always find.
grep -q "#[01] .*$function.* \(tests/sanitizers/planted_\|<null> (planted_\)" <<<"$output" || fail "the report does not name $function"
! grep -q 'MutexLock' <<<"$(grep -A3 'data race' <<<"$output")" || fail "the guarded counter was reported"
