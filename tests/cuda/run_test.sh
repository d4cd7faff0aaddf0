#!/usr/bin/env bash
# The program itself on a device: trains tiny Llamas on a text that it writes, stops and resumes
# them, shares the device among ranks, and compares what metrics.jsonl says of each run.
#
# usage: run_test.sh TESSERA DEVICE [WORKDIR]
#   TESSERA   the program
#   DEVICE    cuda, or cpu to try this script
#   WORKDIR   a folder whose run_test/ gets runs and logs and keeps them; without it, none stays
# Ends with 77 where DEVICE is cuda and no run can use a GPU.
set -euo pipefail

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

(($# == 2 || $# == 3)) || usage
tessera=$(realpath "$1")
device=$2
[[ -x $tessera && $device == @(cuda|cpu) ]] || usage

if [[ $device == cuda ]]; then
  report=$("$tessera" doctor)
  if ! grep --quiet '^gpu ' <<<"$report" || grep --quiet '^gpu  *none' <<<"$report"; then
    echo "run_test: skipped: no GPU that a run can use:"
    sed -n '/^gpu /p; /^cuda /p; /^What would help/,$p' <<<"$report"
    exit 77
  fi
  # Ranks are to share a device, however many there are.
  export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
  CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
fi

if (($# == 3)); then
  work=$(realpath -m "$3")/run_test
  rm -rf "$work"
  mkdir -p "$work"
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
cd "$work"
# The first run finds no timed products there; the others have its choice, and so its bits.
export XDG_CACHE_HOME=$work/cache
declare -ri steps=50

awk 'BEGIN {
  for (i = 0; i < 400; ++i) {
    printf "Line %d of the text tells of %d ships, %d of them lost at sea.\n",
           i, i * i % 97, i * 7 % 31
  }
}' >corpus.txt

# A rate that does not depend on train.steps, so that a run may get more of them.
cat >run.toml <<TOML
[run]
threads = 1
[model]
dim = 64
layers = 2
heads = 4
kv_heads = 2
ffn = 128
vocab = 320
[tokenizer]
path = "tokenizer.json"
train_vocab = 320
[data]
files = ["corpus.txt"]
sequence_length = 64
[train]
steps = $steps
global_batch = 4
microbatch = 2
[optimizer]
lr = 1e-3
[schedule]
warmup = 5
decay_ratio = 0.0
TOML

# train RUN [OVERRIDE...]: on the device, unless an override names another.
train() {
  timeout 300 "$tessera" train run.toml --run.dir="runs/$1" --run.device="$device" "${@:2}"
}

# What a run computed in each step, without times and memory.
numbers() {
  sed -E 's/,"step_seconds".*//' "runs/$1/metrics.jsonl"
}

losses() {
  sed -E 's/.*"loss":([^,}]*).*/\1/' "runs/$1/metrics.jsonl"
}

# has_steps RUN NUMBER
has_steps() {
  local -i found
  found=$(wc --lines <"runs/$1/metrics.jsonl")
  ((found == $2)) || { echo "$1 has $found steps, expected $2"; return 1; }
}

# same RUN RUN: bit by bit.
same() {
  [[ -s runs/$1/metrics.jsonl && -s runs/$2/metrics.jsonl ]]
  diff <(numbers "$1") <(numbers "$2") | head -n 8 || { echo "$1 and $2 differ"; return 1; }
}

# near RUN RUN TOLERANCE: each step's loss.
near() {
  has_steps "$1" "$steps"
  has_steps "$2" "$steps"
  paste <(losses "$1") <(losses "$2") | awk -v tolerance="$3" -v runs="$1 and $2" '
    { off = $1 > $2 ? $1 - $2 : $2 - $1 }
    !(off <= tolerance) {
      print runs " differ by " off " in step " NR ", expected at most " tolerance
      exit 1
    }'
}

# falls RUN: the last loss is less than half of the first.
falls() {
  has_steps "$1" "$steps"
  losses "$1" | awk 'NR == 1 { first = $1 } END { print "loss " first " .. " $1; exit !($1 < first / 2) }'
}

# As far from the CPU's as the arithmetic allows, which does not add up in the same order.
learns() {
  local dtype=$1 tolerance=$2
  train "$dtype" --train.dtype="$dtype"
  grep --quiet "^device = \"$device\"" "runs/$dtype/config.toml"
  falls "$dtype"
  train "cpu-$dtype" --train.dtype="$dtype" --run.device=cpu
  near "$dtype" "cpu-$dtype" "$tolerance"
}

repeats() {
  train again --train.dtype=bf16
  same bf16 again
}

needs_no_graphs() {
  train plain --train.dtype=bf16 --run.cuda_graphs=false
  same bf16 plain
}

# A signal stops a run that has far to go; with more steps than it had it goes on.
resumes() {
  local -i pid done_steps
  "$tessera" train run.toml --run.dir=runs/stopped --run.device="$device" --train.steps=1000000 &
  pid=$!
  for ((i = 0; i < 1200; ++i)); do
    [[ -e runs/stopped/metrics.jsonl ]] && (($(wc --lines <runs/stopped/metrics.jsonl) >= 5)) && break
    sleep 0.05
  done
  kill -TERM "$pid"
  wait "$pid"
  done_steps=$(wc --lines <runs/stopped/metrics.jsonl)
  ((done_steps >= 5))
  train stopped --train.steps=$((done_steps + 10))
  train whole --train.steps=$((done_steps + 10))
  has_steps whole $((done_steps + 10))
  same stopped whole
}

shares_the_device() {
  local name=$1
  train "$name" --parallel.ranks=2 --train.microbatch=1 "${@:2}"
  train "$name-again" --parallel.ranks=2 --train.microbatch=1 "${@:2}"
  same "$name" "$name-again"
  near "$name" f32 1e-4
}

takes_what_is_there() {
  train auto --run.device=auto
  if [[ $device == cuda ]]; then
    grep --quiet '^device = "cuda"' runs/auto/config.toml
  fi
  falls auto
}

generates() {
  local text
  text=$(timeout 300 "$tessera" generate runs/bf16 --device="$device" --prompt='Line 1' --tokens=16)
  echo "generated: $text"
  [[ $text == 'Line 1'?* ]]
  # In f32 the likeliest tokens are the CPU's.
  local -a likeliest=(generate runs/f32 --prompt='Line 1' --tokens=16 --temperature=0)
  text=$(timeout 300 "$tessera" "${likeliest[@]}" --device="$device")
  [[ $text == "$(timeout 300 "$tessera" "${likeliest[@]}" --device=cpu)" ]]
}

evaluates() {
  local -r loss='s/.*"loss":([0-9.]+).*/\1/'
  local on_device on_cpu
  on_device=$(timeout 300 "$tessera" eval runs/f32 --data corpus.txt --json --run.device="$device" | sed -E "$loss")
  on_cpu=$(timeout 300 "$tessera" eval runs/f32 --data corpus.txt --json --run.device=cpu | sed -E "$loss")
  echo "loss: $on_device, on the CPU $on_cpu"
  awk -v a="$on_device" -v b="$on_cpu" 'BEGIN { off = a > b ? a - b : b - a; exit !(off <= 1e-4) }'
}

refuses_too_little_memory() {
  local -i code=0
  train limited --memory.limit_bytes=1000000 >limited.txt 2>&1 || code=$?
  cat limited.txt
  ((code == 4)) || { echo "ended with $code, expected 4"; return 1; }
  grep --quiet '^ *optimizer  ' limited.txt
  grep --quiet '^ *arena  ' limited.txt
  [[ ! -e runs/limited/metrics.jsonl ]]
}

trains_in_float8() {
  train "float8-$1" --train.dtype=bf16 --float8.recipe="$1"
  falls "float8-$1"
  near "float8-$1" bf16 0.05
}

declare -i failed=0

# check WHAT FUNCTION [ARG...]: prints one line, and what the function said where it fails.
check() {
  local -i code=0 begin=$SECONDS
  # Not in a condition, where -e would not hold inside.
  set +e
  (
    set -e
    "${@:2}"
  ) >check.log 2>&1
  code=$?
  set -e
  if ((code == 0)); then
    echo "run_test: ok: $1 ($((SECONDS - begin)) s)"
  else
    failed+=1
    echo "run_test: FAILED: $1"
    tail -n 40 check.log | sed 's/^/    /'
  fi
}

check "f32: the loss falls, within 1e-4 of the CPU's" learns f32 1e-4
check "bf16: the loss falls, within 1e-2 of the CPU's" learns bf16 1e-2
check "a run repeats bit by bit" repeats
check "run.cuda_graphs = false changes no bit" needs_no_graphs
check "stopped by a signal and resumed is bit by bit the run that was not" resumes
check "two ranks on one device, fsdp: repeats, and computes what one does" \
  shares_the_device fsdp --state.preset=fsdp
check "two ranks on one device, tensor parallel: repeats, and computes what one does" \
  shares_the_device tensor --parallel.tensor=2
check "run.device = \"auto\"" takes_what_is_there
check "float8, tensorwise" trains_in_float8 tensorwise
check "float8, rowwise" trains_in_float8 rowwise
check "generate continues a prompt" generates
check "eval measures as on the CPU" evaluates
check "too little memory: exit 4, the plan's table, no step" refuses_too_little_memory

((failed == 0)) || { echo "run_test: $failed checks failed on $device" >&2; exit 1; }
