#!/usr/bin/env bash
# What Tessera reaches on this machine's GPU, beside PyTorch. Runs from the repository's root on a
# machine that has build/bundle (of ./x bundle, made anywhere), and needs nothing else of Tessera's.
#
# usage: bench/gpu.sh tests|core|train [ARG...]
#   tests   the tests that need a GPU, and the kernels under compute-sanitizer where it works
#   core    ceilings, and each kernel against them: at most 9 minutes; ARGs go to gpu_core_bench
#   train   whole training steps: at most 9 minutes; ARGs go to gpu_train_bench
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
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
[[ -x $bundle/bin/tessera ]] ||
  fail "no $bundle/bin/tessera: make the bundle with ./x bundle, and unpack build/bundle.tar.gz here"

# PyTorch's interpreter: the first python3 that has it.
found_python=
for python in $(type -ap python3) /usr/bin/python3; do
  if "$python" -c 'import importlib.util as i, sys; sys.exit(i.find_spec("torch") is None)'; then
    found_python=$python
    break
  fi
done

# Folders in which NVIDIA's libraries may lie: the toolkit's, and those of PyTorch's packages.
library_folders() {
  local toolkit=${CUDA_HOME:-/usr/local/cuda}
  command -v nvcc >/dev/null && toolkit=$(dirname "$(dirname "$(realpath "$(command -v nvcc)")")")
  printf '%s\n' "$toolkit"/{lib64,lib,targets/x86_64-linux/lib,extras/CUPTI/lib64}
  if [[ -n $found_python ]]; then
    "$found_python" - <<'PYTHON'
import glob, importlib.util
packages = importlib.util.find_spec("nvidia")
for root in packages.submodule_search_locations if packages else []:
    print(*glob.glob(root + "/*/lib"), sep="\n")
PYTHON
  fi
}
# It keeps the libraries that it comes with.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TESSERA_PYTHON=$work/python3
printf '#!/bin/sh\nLD_LIBRARY_PATH=%q exec %q "$@"\n' "${LD_LIBRARY_PATH:-}" "$found_python" >"$TESSERA_PYTHON"
chmod +x "$TESSERA_PYTHON"
while IFS= read -r folder; do
  [[ -d $folder ]] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done < <(library_folders)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

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

# run_sanitizer TOOL [ARG...]: the kernels under a tool of compute-sanitizer.
run_sanitizer() {
  local output code=0
  if ! command -v compute-sanitizer >/dev/null; then
    echo "gpu.sh: $1 skipped: no compute-sanitizer"
    return
  fi
  output=$(timeout 240 compute-sanitizer --tool "$1" --error-exitcode 9 "${@:2}" 2>&1) || code=$?
  if grep --quiet 'Device not supported\|Unable to' <<<"$output"; then
    echo "gpu.sh: $1 skipped: compute-sanitizer refuses this device"
  elif ((code == 0)); then
    echo "gpu.sh: $1: clean"
  else
    tail -n 60 <<<"$output"
    fail "$1 ends with $code"
  fi
}

declare -i code=0
case $what in
  tests)
    for program in cuda_test nccl_test; do
      [[ ! -x $bundle/tests/$program ]] || "$bundle/tests/$program" --gtest_brief=1 || code=1
    done
    run_sanitizer memcheck "$bundle/tests/cuda_test" --gtest_brief=1
    run_sanitizer racecheck "$bundle/tests/cuda_test" --gtest_brief=1 --gtest_filter='*norm*:*swiglu*'
    ;;
  core) timeout 540 "$bundle/bench/gpu_core_bench" "${peer[@]}" "$@" || code=$? ;;
  train) timeout 540 "$bundle/bench/gpu_train_bench" "${peer[@]}" "$@" || code=$? ;;
esac
((code != 124)) || fail "$what took longer than 9 minutes"
exit "$code"
