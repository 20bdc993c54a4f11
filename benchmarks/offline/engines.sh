#!/usr/bin/env bash
# Engines side by side on one GPU, prefix caches off, for benchmarks.serve.side_by_side:
#   MODEL=FOLDER PROJECT=FOLDER WHEELS=FOLDER engines.sh start NAME=KIND:PORT...
#   engines.sh wait SECONDS PORT...
#   engines.sh only NAME...      the others pause: idle ones of SGLang keep a core busy
#   engines.sh stop
# KIND is sglang, sglang-ngram, sglang-graft, sglang-chains, vllm, vllm-ngram, vllm-ngram-gpu, vllm-graft or graft.
# WHEELS has the folders graft, sglang and vllm that pack.py made; logs lie in $LOGS.
# KV is the tokens of each SGLang's KV cache, BYTES those of the others, SHARE (of the memory) a vLLM's with weights;
# PREFILL the sizes of SGLang's CUDA graphs of prompts, of which its own 58 take a minute.
# CONTEXT the longest request, PLACES how many run at once, HEADDIM the width of a head of a grown model.
set -euo pipefail
logs=${LOGS:-$HOME/logs}; mkdir -p "$logs"
kv=${KV:-300000} context=${CONTEXT:-10240} places=${PLACES:-64}
bytes=${BYTES:-9000000000} share=${SHARE:-0.12} heads=${HEADDIM:-}

sglang() { # drafting options...
  PYTHONPATH=$PROJECT:$WHEELS/sglang:$WHEELS/graft python3 -m sglang.launch_server --model-path "$MODEL" \
    --served-model-name m --host 127.0.0.1 --port "$port" --context-length "$context" --mem-fraction-static 0.9 \
    --max-total-tokens "$kv" --max-running-requests "$places" --cuda-graph-max-bs "$places" --disable-radix-cache \
    --dtype bfloat16 --attention-backend fa3 ${PREFILL:+--cuda-graph-bs-prefill $PREFILL} "$@"
}

vllm() { # drafting options...
  local qwen2=$WHEELS/vllm/vllm/model_executor/models/qwen2.py
  if [[ -n $heads ]]; then # a grown model's heads are wider than vLLM's Qwen2 computes from its config
    sed -i "s|self.head_dim = hidden_size // self.total_num_heads$|self.head_dim = $heads|" "$qwen2"
  fi
  VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_CACHE_ROOT=$logs/$name.cache PYTHONPATH=$PROJECT:$WHEELS/graft:$WHEELS/vllm \
    python3 -m vllm.entrypoints.openai.api_server --model "$MODEL" --served-model-name m --host 127.0.0.1 --port "$port" \
    --max-model-len "$context" --gpu-memory-utilization "$share" --kv-cache-memory-bytes "$bytes" \
    --max-num-seqs "$places" --no-enable-prefix-caching --dtype bfloat16 "$@"
}

start() { # kind
  local nodes=(--speculative-num-draft-tokens 16 --speculative-ngram-capacity 1000)
  case $1 in
  sglang) sglang ;;
  sglang-ngram) sglang --speculative-algorithm NGRAM "${nodes[@]}" ;;
  sglang-graft) sglang --speculative-algorithm GRAFT "${nodes[@]}" ;;
  sglang-chains) sglang --speculative-algorithm GRAFT "${nodes[@]}" --speculative-ngram-max-bfs-breadth 1 ;;
  vllm) vllm ;;
  vllm-ngram) vllm --speculative-config '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}' ;;
  vllm-ngram-gpu) vllm --speculative-config '{"method": "ngram_gpu", "num_speculative_tokens": 5, "prompt_lookup_max": 4}' ;;
  vllm-graft) GRAFT_VLLM=1 vllm --compilation-config '{"cudagraph_mode": "FULL"}' --speculative-config \
    '{"method": "ngram_gpu", "num_speculative_tokens": 15, "prompt_lookup_min": 1, "prompt_lookup_max": 16}' ;;
  graft) PYTHONPATH=$PROJECT:$WHEELS/graft python3 -m graft serve "$MODEL" --port "$port" --dtype bf16 \
    --context-length "$context" --kv-cache "$((bytes / 1000000000))" --max-batch 16 --max-waiting 256 ;;
  *) echo "unknown kind $1" >&2; exit 2 ;;
  esac
}

command=${1:-help}; shift || true
case $command in
start)
  for each in "$@"; do
    name=${each%%=*} kind=${each#*=}; port=${kind#*:}; kind=${kind%:*}
    export -f start sglang vllm; export name port kind logs kv bytes share heads context places MODEL PROJECT WHEELS
    HF_HUB_OFFLINE=1 TRITON_CACHE_DIR=$logs/$name.triton NUMBA_CACHE_DIR=$logs/numba \
      setsid bash -c 'start "$kind"' > "$logs/$name.log" 2>&1 < /dev/null &
    echo $! > "$logs/$name.pid"
  done ;;
wait)
  end=$((SECONDS + $1)); shift
  for port in "$@"; do
    until curl -sf -o /dev/null -m 5 "http://127.0.0.1:$port/v1/models"; do
      if ((SECONDS > end)); then echo "no server on port $port"; exit 1; fi
      sleep 1
    done
  done ;;
only)
  for pid in "$logs"/*.pid; do
    name=$(basename "$pid" .pid); [[ " $* " == *" $name "* ]] && signal=CONT || signal=STOP
    kill -$signal -- "-$(cat "$pid")" 2> /dev/null || true
  done ;;
stop)
  for pid in "$logs"/*.pid; do kill -9 -- "-$(cat "$pid")" 2> /dev/null || true; rm "$pid"; done ;;
*)
  sed -n '2,12s/^# *//p' "$0"
  exit 2 ;;
esac
