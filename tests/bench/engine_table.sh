#!/bin/bash
# The table of docs/BENCHMARKS.md: every model and cell beside llama.cpp, one thread, in processor time; then two threads
# beside one, in wall time. Takes about ten minutes on a quiet machine with one peer.
#
#   engine_table.sh BENCH MODELS OUT NAME=LLAMA_BIN...
#
# BENCH: engine_bench, with libcpu_clock_preload.so beside it. MODELS: a folder; missing models are written there by
# write_random_gguf, which must be on the path or named by WRITE_RANDOM_GGUF. OUT: a folder for table.md, the reports
# and the plots. LLAMA_BIN: a folder with llama-bench and llama-batched-bench.
# A build of llama.cpp that was moved loads the libraries of where it was linked: then NAME's programs are scripts that set
# LD_LIBRARY_PATH.
# Environment: REPETITIONS (pairs of each cell; 1), ONLY (models, e.g. "135m-q8_0 1b-q8_0"), CPU (0), COMMIT.
set -euo pipefail
if [ $# -lt 3 ]; then
  sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
bench=$1 models=$2 out=$3
shift 3
mkdir -p "$out" "$models"
: > "$out/reports.txt"
: > "$out/rows.txt"

# Rows of a report's table as "cell|tokens/s|share|peer ratio|peer ratio...".
rows() {
  awk -v model="$1" '
    /tokens\/s +ITL/ { for (i = 5; i <= NF; ++i) peer[i - 4] = $i; next }
    /^(prefill|decode) / {
      prefill = $1 == "prefill"
      cell = prefill ? $1 " " $2 : $1 " " $2 " " $3
      i = prefill ? 3 : 4
      rate = $i; i += prefill ? 1 : 2
      line = model "|" cell "|" rate "|" $i " of " $(i + 1)
      n = 0
      for (i += 2; i < NF; i += 2) line = line "|" peer[++n] " " $i " (" $(i + 1) ")"
      print line
    }' >> "$out/rows.txt"
}

# measure MODEL REPORT NOTE ARGUMENT...: one report, MODEL-REPORT.json and appended to reports.txt; the note is of its rows.
measure() {
  local model=$1 report=$2 note=$3
  shift 3
  "$bench" --model "$models/$model.gguf" --read_mib 512 --json "$out/$model-$report.json" --commit "${COMMIT:-}" "$@" \
    2>> "$out/log.txt" | tee -a "$out/reports.txt" | rows "$model$note" ||
    echo "$model, $report: failed, see $out/log.txt" >&2
}

for model in ${ONLY:-135m-q8_0 135m-q4_0 1b-q8_0 1b-q4_0 1b-bf16}; do
  if [ ! -e "$models/$model.gguf" ]; then
    case $model in 135m-*) shape=smollm2-135m ;; *) shape=llama-3.2-1b ;; esac
    "${WRITE_RANDOM_GGUF:-write_random_gguf}" $shape "${model#*-}" "$models/$model.gguf"
  fi
  prefill_peers=() decode_peers=()
  for peer in "$@"; do
    # Their warm-up is the whole prompt once more, which matters where a prompt takes a minute.
    prefill_peers+=(--peer "${peer%%=*}=${peer#*=}/llama-bench --no-warmup")
    decode_peers+=(--peer "${peer%%=*}=${peer#*=}/llama-bench" --peer "${peer%%=*}=${peer#*=}/llama-batched-bench")
  done
  common=(--clock cpu --cpu "${CPU:-0}" --repetitions "${REPETITIONS:-1}")
  case $model in *-bf16) common+=(--numerics bf16) ;; esac
  case $model in 135m-*) batches=1,2,4,8,16,32 ;; *) batches=1,8,32 ;; esac
  mkdir -p "$out/$model"
  measure $model prefill "" "${common[@]}" --prefill 512,2048 --batch 0 "${prefill_peers[@]}"
  measure $model decode "" "${common[@]}" --prefill 0 --batch $batches --context 0 --steps 16 --plots "$out/$model" \
    "${decode_peers[@]}"
  measure $model context "" "${common[@]}" --prefill 0 --batch 1 --context 2048 --steps 16 "${decode_peers[@]}"
  case $model in
    *-q8_0)
      for threads in 1 2; do
        measure $model threads$threads ", $threads thread(s), wall" --threads $threads --repetitions 3 --prefill 512 \
          --batch 1,32 --context 0 --steps 16
      done
      ;;
  esac
done

{
  echo "| model | cell | tokens/s | share of limit | peers: tokens/s (ratio) |"
  echo "|---|---|---|---|---|"
  awk -F'|' '{ p = ""; for (i = 5; i <= NF; ++i) p = p (i > 5 ? ", " : "") $i; print "| " $1 " | " $2 " | " $3 " | " $4 " | " p " |" }' \
    "$out/rows.txt"
  echo
  grep -h -A2 '^.*threads\?, cpu/' "$out/reports.txt" | grep -v '^--' | sort -u | sed 's/^/    /'
} > "$out/table.md"
cat "$out/table.md"
