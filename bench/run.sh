#!/usr/bin/env bash
# Runs every benchmark program of the release build; ./x bench builds them and calls this.
#
# usage: bench/run.sh [ARG...]        ARGs go to each program (as in --benchmark_filter=rms_norm)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for program in $(find build/bench -maxdepth 1 -type f -executable | sort); do
  echo "== ${program#build/}"
  "$program" "$@"
done
