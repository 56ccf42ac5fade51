#!/bin/sh
# The router links no kernels, no engine and no transport (element types and header-only seams are all it may see of them).
set -eu
grep -q '^//router:router_lib$' "$1" || { echo "the list of dependencies is empty or of something else"; exit 1; }
if grep -E '^//(engine|kvcache|kvtransfer|prefill_worker|decode_worker|kernels/)|^//kernels:cpu_backend$' "$1"; then
  echo "the router must not depend on the targets above"
  exit 1
fi
