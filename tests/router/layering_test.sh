#!/bin/sh
# The router links no kernels, no engine and no transport (element types, header-only seams and the names of prefixes are
# all it may see of them).
set -eu
grep -q '^//router:router_lib$' "$1" || { echo "the list of dependencies is empty or of something else"; exit 1; }
if grep -v '^//kvcache:prefix_hash' "$1" |
   grep -E '^//(engine|kvcache|kvtransfer|prefill_worker|decode_worker|kernels/)|^//kernels:cpu_backend$'; then
  echo "the router must not depend on the targets above"
  exit 1
fi
