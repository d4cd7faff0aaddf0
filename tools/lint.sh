#!/usr/bin/env bash
# Checks format, lengths, includes and the rules of .clang-tidy in the whole tree, and fails if any
# check does.
#
# usage: tools/lint.sh BUILD_DIR [--deep]
#
# BUILD_DIR is configured (preset lint) and gives the flags. --deep adds the path-sensitive checks.
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

check() {
  local name=$1
  shift
  if "$@"; then
    echo "lint: $name: clean"
  else
    echo "lint: $name: FAILED" >&2
    failed=yes
  fi
}

check_format() {
  tools/list_sources.sh | xargs clang-format-19 --dry-run -Werror
}

# A longer file has more than one subject.
check_lengths() {
  tools/list_sources.sh | xargs wc --lines | awk '
    $2 != "total" && $1 > 600 {
      printf "%s: found %d lines, expected at most 600\n", $2, $1
      failed = 1
    }
    END { exit failed }'
}

# Functions that nvcc 13.0 compiles to a constant where a kernel calls them.
check_kernels() {
  local -i code=0
  grep --recursive --line-number --extended-regexp 'std::countr_(zero|one)\(' \
    --include='*.cu' --include='*_cuda.h' --include='*.h' src/tessera/ops src/tessera/base \
    src/tessera/backend/cuda || code=$?
  ((code == 1))  # nothing found
}

failed=no
check "clang-format (./x format repairs)" check_format
check "lengths" check_lengths
check "includes" tools/lint_includes.sh
check "functions that kernels must not call" check_kernels
check "rules" tools/lint_tidy.sh quick "$build"
if [[ ${2:-} == --deep ]]; then
  check "path-sensitive rules" tools/lint_tidy.sh deep "$build"
fi
[[ $failed == no ]]
