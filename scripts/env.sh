# Sourced by the other scripts: where things are, and how Bazel is called.
# shellcheck shell=bash

BATON_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export BATON_CACHE="${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}"
BATON_MODELS="$BATON_CACHE/models"
SMOLLM2="$BATON_MODELS/SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3="$BATON_MODELS/gemma-3-270m-q4_k_m.gguf"

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Compiled actions are kept outside the tree, so that a fresh clone builds from them.
baton_bazel() {
  local command=$1
  shift
  (cd "$BATON_ROOT" && bazel "$command" --disk_cache="$BATON_CACHE/bazel" "$@")
}
