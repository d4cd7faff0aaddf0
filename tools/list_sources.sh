#!/usr/bin/env bash
# Prints our own C++ and CUDA sources, a path a line from the repository's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
find . \( -path './.*' -o -path './build*' -o -path ./runs \) -prune -o \
  -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print | cut --characters 3- | sort
