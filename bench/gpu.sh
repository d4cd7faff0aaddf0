#!/usr/bin/env bash
# What Tessera reaches on this machine's GPU, beside PyTorch. Runs from the repository's root on a
# machine that has build/bundle (of ./x bundle, made anywhere), and needs nothing else of Tessera's.
#
# usage: bench/gpu.sh tests|core|train [ARG...]
#   tests   the tests that need a GPU, the program itself on it, and the kernels under
#           compute-sanitizer where it works: at most 9 minutes
#   core    ceilings, and each kernel against them: at most 9 minutes; ARGs go to gpu_core_bench
#   train   whole training steps: at most 9 minutes; ARGs go to gpu_train_bench
# TESSERA_GPU_SECONDS=N lets a part take N seconds at most.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bundle=${TESSERA_BUNDLE:-build/bundle}
what=${1:-}
shift || true

fail() {
  echo "gpu.sh: $*" >&2
  exit 1
}

case $what in
  tests | core | train) ;;
  *)
    sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
[[ -x $bundle/bin/tessera ]] ||
  fail "no $bundle/bin/tessera: make the bundle with ./x bundle, and unpack it by tar -xzf build/bundle.tar.gz -C build"

# PyTorch's interpreter: the first python3 that has it.
found_python=
for python in $(type -ap python3) /usr/bin/python3; do
  if "$python" -c 'import importlib.util as i, sys; sys.exit(i.find_spec("torch") is None)'; then
    found_python=$python
    break
  fi
done

toolkit=${CUDA_HOME:-/usr/local/cuda}
command -v nvcc >/dev/null && toolkit=$(dirname "$(dirname "$(realpath "$(command -v nvcc)")")")

# Folders in which NVIDIA's libraries may lie: those of PyTorch's packages, so that both sides call
# the same ones, and the toolkit's.
library_folders() {
  if [[ -n $found_python ]]; then
    "$found_python" - <<'PYTHON'
import glob, importlib.util
packages = importlib.util.find_spec("nvidia")
for root in packages.submodule_search_locations if packages else []:
    print(*glob.glob(root + "/*/lib"), sep="\n")
PYTHON
  fi
  printf '%s\n' "$toolkit"/{lib64,lib,targets/x86_64-linux/lib,extras/CUPTI/lib64}
}
# It keeps the libraries that it comes with.
work=$(mktemp -d)
# What still runs in the background; mostly nothing, which kill calls an error.
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
export TESSERA_PYTHON=$work/python3
printf '#!/bin/sh\nLD_LIBRARY_PATH=%q exec %q "$@"\n' "${LD_LIBRARY_PATH:-}" "$found_python" >"$TESSERA_PYTHON"
chmod +x "$TESSERA_PYTHON"
while IFS= read -r folder; do
  [[ -d $folder ]] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done < <(library_folders)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
# What it chose of cuBLASLt's algorithms is kept there.
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}
export TESSERA_SOURCE=$PWD

report=$("$bundle/bin/tessera" doctor)
echo "$report"
! grep --quiet '^gpu  *none that a run can use' <<<"$report" ||
  fail "this machine has no GPU that Tessera can use, as the lines above say"

declare -a peer=()
if [[ -n $found_python ]]; then
  [[ $what == core ]] && peer=(--peer=bench/peers/torch_ops_gpu.py)
  [[ $what == train ]] && peer=(--peer=bench/peers/torch_llama_gpu.py)
elif [[ $what != tests ]]; then
  echo "gpu.sh: no python3 has PyTorch: measuring without it"
fi

declare -i code=0
readonly limit=${TESSERA_GPU_SECONDS:-535}  # seconds
[[ $limit =~ ^[1-9][0-9]*$ ]] || fail "TESSERA_GPU_SECONDS is '$limit', expected a number of seconds"

# at_most SECONDS: so many, or what is left of the limit.
at_most() {
  local -ri left=$((limit - SECONDS))
  echo "$((left < 1 ? 1 : left < $1 ? left : $1))"
}

# run_tests PROGRAM PROCESSES: the program's tests, shared out among processes, without the lines of
# tests that pass; those that are skipped say why. grep fails where it has no line to print, which is
# none of the tests' failures.
run_tests() {
  local -r program=$bundle/tests/$1
  local -i i result skipped=0
  local -a pids=()
  if [[ ! -x $program ]]; then
    echo "gpu.sh: $1: skipped, since the bundle has none: it was built without that library or the tests"
    return 0
  fi
  local -ri begin=$SECONDS
  for ((i = 0; i < $2; ++i)); do
    GTEST_TOTAL_SHARDS=$2 GTEST_SHARD_INDEX=$i timeout --kill-after=10 "$(at_most 360)" "$program" \
      >"$work/$1.$i" 2>&1 &
    pids+=($!)
  done
  for ((i = 0; i < $2; ++i)); do
    result=0
    wait "${pids[i]}" || result=$?
    if ((result == 77)); then
      skipped+=1
      result=0
    fi
    grep --invert-match '^\[ RUN  \|^\[       OK \|^\[=\|^\[-\|^Note: \|^$' "$work/$1.$i" || true
    if ((result == 124 || result == 137)); then
      echo "gpu.sh: $1: FAILED, since it ran out of time in $(grep '^\[ RUN ' "$work/$1.$i" | tail -n 1)"
      code=1
    elif ((result != 0)); then
      echo "gpu.sh: $1: FAILED with exit code $result"
      code=1
    fi
  done
  if ((skipped == $2)); then
    echo "gpu.sh: $1: all of it skipped, as the lines above say"
  fi
  echo "gpu.sh: $1: $(cat "$work/$1".* | grep --count '^\[       OK ') tests pass, $((SECONDS - begin)) s"
}

# Empty where there is none.
sanitizer=$(command -v compute-sanitizer "$toolkit"/bin/compute-sanitizer \
  "$toolkit"/compute-sanitizer/compute-sanitizer | head -n 1) || true

# start_sanitizer NAME TOOL FILTER [ARG...]: in the background, the tests of cuda_test that FILTER
# chooses, in another order each time, under a tool of compute-sanitizer, which gets the ARGs.
declare -A sanitizers=()
start_sanitizer() {
  local -r name=$1 tool=$2 filter=$3
  local seconds
  seconds=$(at_most "$limit")
  timeout --kill-after=10 "$seconds" "$sanitizer" --tool "$tool" --error-exitcode 9 "${@:4}" \
    "$bundle/tests/cuda_test" --gtest_filter="$filter" --gtest_shuffle >"$work/$name" 2>&1 &
  sanitizers[$name]=$!
}

# report_sanitizer NAME: once it has ended. What it found comes first: no finding is taken for a
# refusal, or for a lack of time.
report_sanitizer() {
  local -r name=$1
  local -r finding='^========= .*\(Invalid\|Misaligned\|[1-9][0-9]* hazard\|Race reported\)'
  local -i result=0 done_tests
  local output
  wait "${sanitizers[$name]}" || result=$?
  output=$(<"$work/$name")
  done_tests=$(grep --count '^\[       OK ' <<<"$output") || true
  # It counts an error of its own, after which no kernel runs. What failed before is a test's.
  local own=none first_failed
  if grep --quiet '^========= Internal Sanitizer Error' <<<"$output"; then
    own=$(grep '^=========' <<<"$output" |
      grep --invert-match --count 'Internal Sanitizer Error\|SUMMARY: 1 \|COMPUTE-SANITIZER\|Target application\|^========= *$') ||
      true
    first_failed=$(grep --max-count=1 '^\[  FAILED\|^========= Internal' <<<"$output")
    [[ $first_failed == *Internal* ]] || own=none
  fi
  if [[ $own == 0 ]]; then
    echo "gpu.sh: $name: stopped by an error of compute-sanitizer itself in" \
      "$(grep --max-count=1 '^\[  FAILED' <<<"$output"): clean over the first $done_tests tests"
  elif ((result == 9)) || grep --quiet "$finding\|^\[  FAILED" <<<"$output"; then
    # A lack of such lines is none of the tests' failures.
    grep '^=========' <<<"$output" | head -n 40 || true
    grep --invert-match '^=========\|^\[ RUN  \|^\[       OK \|^\[  FAILED' <<<"$output" | head -n 40 || true
    echo "gpu.sh: $name: FAILED, after $done_tests tests that passed"
    code=1
  elif ((result == 124 || result == 137)); then
    echo "gpu.sh: $name: not finished in time: clean over the first $done_tests tests"
  elif grep --quiet '^========= .*\([Dd]evice not supported\|Unable to\|[Ii]nsufficient\)' <<<"$output"; then
    echo "gpu.sh: $name skipped: compute-sanitizer refuses this device:"
    grep --max-count=5 '^========= ' <<<"$output"
  elif ((result == 0 && done_tests > 0)) && grep --quiet '^========= .*SUMMARY: 0 ' <<<"$output"; then
    echo "gpu.sh: $name: clean over $done_tests tests"
  else
    tail -n 60 <<<"$output"
    echo "gpu.sh: $name: FAILED, compute-sanitizer ends with $result"
    code=1
  fi
}

# What shares memory of a block or exchanges values within a warp, each in a process of its own: in
# bf16 where both dtypes take the same way.
declare -rA race_filters=(
  [racecheck-norms]='*CudaKernels*/rms_norm*bf16*:*CudaKernels*/layer_norm*bf16*'
  [racecheck-loss]='*CudaKernels*/cross_entropy*bf16*'
  [racecheck-attention]='*CudaKernels*/attention*:CudaAttention.OwnKernels*:CudaAttention.Tiles*'
  [racecheck-softmax]='*CudaKernels*/scale_mask_softmax*bf16*'
  [racecheck-codes]='*CudaKernels*/amax*bf16*:*CudaKernels*/quantize_float8*:*CudaKernels*/transpose_codes*'
  [racecheck-sums]='*CudaKernels*/embedding_backward*bf16*:*CudaKernels*/sum_squares*:*CudaKernels*/clip_scale*:*CudaKernels*/bias_gradient*bf16*'
)

run_sanitizers() {
  if [[ -z $sanitizer ]]; then
    echo "gpu.sh: no compute-sanitizer: kernels are not looked at for races and wrong addresses"
    return
  fi
  # Of libraries' kernels it also says what is none.
  local option=--kernel-name
  if [[ $("$sanitizer" --help 2>&1) != *"$option"* ]]; then
    option=--kernel-regex  # of older ones
  fi
  local name
  for name in "${!race_filters[@]}"; do
    start_sanitizer "$name" racecheck "${race_filters[$name]}" "$option" kns=tessera
  done
  # The program looks at each call itself, and at some that may fail.
  start_sanitizer memcheck memcheck \
    'Ops/CudaKernels.*:CudaMover.*:CudaDraw.*:CudaAttention.OwnKernels*:CudaAttention.Tiles*:CudaSumSquares.*' \
    --report-api-errors no
  for name in "${!sanitizers[@]}"; do
    report_sanitizer "$name"
  done
}

case $what in
  tests)
    export TESSERA_SAMPLE_SEED=$RANDOM  # operands of the samples that nobody has seen
    echo "gpu.sh: TESSERA_SAMPLE_SEED=$TESSERA_SAMPLE_SEED"
    # Most of their time is the host's, which computes what they expect.
    run_tests cuda_test "$(($(nproc) < 16 ? $(nproc) : 16))"
    run_tests nccl_test 1
    timeout --kill-after=10 "$(at_most 120)" tests/cuda/run_test.sh "$bundle/bin/tessera" cuda || code=1
    run_sanitizers
    ;;
  core) timeout "$(at_most "$limit")" "$bundle/bench/gpu_core_bench" "${peer[@]}" "$@" || code=$? ;;
  train)
    # It ends by itself, so that each case says what became of it.
    left=$(at_most "$limit")
    timeout "$left" "$bundle/bench/gpu_train_bench" --seconds="$((left > 30 ? left - 15 : left))" \
      "${peer[@]}" "$@" || code=$?
    ;;
esac
((code != 124)) || fail "$what took longer than $limit s"
exit "$code"
