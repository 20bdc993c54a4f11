#!/usr/bin/env bash
# The figures at an 8B model's price on one GPU (docs/results.md), in the root of the project:
#   grown.sh write DATA FOLDER   the prompts of all runs; DATA has the suites' folders
#   grown.sh grow                both shapes of $MODEL, and the heads
#   grown.sh run PART...         rows of long, small, longspec or fusion, to $OUT/PART.jsonl
# MODEL and SMALL are the 1.5B and the 0.5B, HEAD the 1.5B's EAGLE-3 head, STORE a datastore for MedQA,
# PROMPTS the folder of `write`, GROWN the folder of `grow`. COUNT: prompts of a category, 4 if not given.
set -euof pipefail
python=${PYTHON:-python3} grown=${GROWN:-grown} count=${COUNT:-4}
cells="$python -m benchmarks.decode.cells"

write() { # file suite:folder:count[:context]...
  local prompts=() file=$1; shift
  for each in "$@"; do prompts+=(--prompts "${each/:/:$data/}"); done
  $cells write --model "$MODEL" --out "$folder/$file.jsonl.gz" "${prompts[@]}"
}

run() { # part model cell... -- options...
  local part=$1 model=$2 words=(); shift 2
  while [[ $1 != -- ]]; do words+=(--cell $1); shift; done
  shift
  $cells run --model "$model" --dtype bf16 --max-tokens 128 --out "$OUT/$part.jsonl" "${words[@]}" "$@"
}

long='plain,copy,auto,magicdec?draft_tokens=3,triforce?draft_tokens=6,rapid?retrieved=2048'
long+=',rapid?draft_tokens=4&retrieved=2048,rapid?draft_tokens=10&retrieved=2048'
longest=',rapid?retrieved=1024,rapid?retrieved=4096,rapid?draft_tokens=2&retrieved=2048'
longest+=',rapid+copy?retrieved=2048,rapid@0.8?retrieved=2048'
small='plain,sd?draft_tokens=4,rapid?retrieved=2048,rapid?draft_tokens=4&retrieved=2048,auto'
small_longest=',rapid@0.8?draft_tokens=4&retrieved=2048,sd@0.8?draft_tokens=4'
layer='plain,longspec@0.5,longspec@0.8,magicdec'
squad='plain,eagle3,casd?casd.length=2,casd?casd.length=4,casd,casd?casd.length=16'
squad+=',rasd-pld?rasd.length=2,rasd-pld?rasd.length=4,rasd-pld,rasd-pld?rasd.length=16'
fused='plain,eagle3,casd,rasd-pld'
stored="$fused,rasd-rest:${STORE:-STORE}"
memory='{"prefix_cache": 40000000000, "kv_cache": 70000000000}'

command=${1:-help}; shift || true
case $command in
write)
  data=$1 folder=$2
  mkdir -p "$folder"
  half=$(((count + 1) / 2))
  write long dialogue:mtbench101:$count:31k dialogue:mtbench101:$half:16k dialogue:mtbench101:$half:8k \
    qmsum:qmsum:$count:16k qmsum:qmsum:$count:8k
  write longspec qmsum:qmsum:$((2 * count)):8k qmsum:qmsum:$((2 * count)):16k dialogue:mtbench101:2:31k
  write fusion squad:squad:$((4 * count)) spider:spider:$((4 * count)) humaneval:humaneval:$((4 * count)) \
    medqa:medqa:$((2 * count)) ;;
grow)
  $python -m benchmarks.grow --model "$MODEL" --out "$grown/wide"
  $python -m benchmarks.grow --model "$MODEL" --heads 32 --kv-heads 32 --out "$grown/keys"
  $python -m benchmarks.grow --model "$MODEL" --head "$HEAD" --grown "$grown/wide" --out "$grown/eagle3"
  $python -m benchmarks.grow --model "$grown/keys" --untrained longspec --out "$grown/longspec" ;;
run)
  mkdir -p "$OUT"
  for part in "$@"; do
    case $part in
    long)
      run long "$grown/keys" "dialogue@31k $long$longest" "dialogue@16k $long" "dialogue@8k $long" \
        "qmsum@16k $long" "qmsum@8k $long" -- --head none --prompts "$PROMPTS/long.jsonl.gz" --load-options "$memory" ;;
    small)
      run small "$grown/keys" "dialogue@31k $small$small_longest" "dialogue@16k $small" "dialogue@8k $small" \
        "qmsum@16k $small" "qmsum@8k $small" -- --head none --draft-model "$SMALL" \
        --prompts "$PROMPTS/long.jsonl.gz" --load-options "$memory" ;;
    longspec)
      run longspec "$grown/keys" "qmsum@8k $layer" "qmsum@16k $layer" "qmsum@16k $layer 4" "qmsum@16k $layer 8" \
        "dialogue@31k $layer 4" -- --head "$grown/longspec" --prompts "$PROMPTS/longspec.jsonl.gz" \
        --load-options '{"prefix_cache": 62000000000, "kv_cache": 100000000000}' ;;
    fusion)
      run fusion "$grown/wide" "squad $squad" "spider $fused" "humaneval $fused" "medqa $stored" \
        "squad $fused 1 1" "humaneval $fused 1 1" -- --head "$grown/eagle3" --prompts "$PROMPTS/fusion.jsonl.gz" ;;
    *) echo "no part $part" >&2; exit 2 ;;
    esac
  done ;;
*)
  sed -n '2,8s/^# *//p' "$0"
  exit 2 ;;
esac
