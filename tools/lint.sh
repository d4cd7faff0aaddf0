#!/usr/bin/env bash
# Checks format, includes and clang-tidy's findings of the whole tree, and fails if any check does.
#
# usage: tools/lint.sh BUILD_DIR      BUILD_DIR is configured (preset lint); it gives the flags
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

failed=no
check "clang-format (./x format repairs)" check_format
check "includes" tools/lint_includes.sh
check "clang-tidy" tools/lint_tidy.sh "$build"
[[ $failed == no ]]
