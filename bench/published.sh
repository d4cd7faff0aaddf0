#!/usr/bin/env bash
# Scores the simulator against training steps that others published.
#
# usage: bench/published.sh [--rows] [--shuffle] FILE.csv...
#
# The tables have the columns and words of their README; what their empty cells stand for is in
# bench/published_defaults.toml. Builds the program first unless TESSERA_BUILD names a build that
# has it.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
build="${TESSERA_BUILD:-$root/build}"

if [[ $# -eq 0 ]]; then
  sed -n '4p' "${BASH_SOURCE[0]}" | cut -c 3- >&2
  exit 1
fi
program="$build/bench/fit/published_bench"
if [[ -z "${TESSERA_BUILD:-}" || ! -x "$program" ]]; then
  ninja -C "$build" published_bench >&2
fi
options=()
files=()
for argument in "$@"; do
  if [[ "$argument" == -* ]]; then options+=("$argument"); else files+=("$argument"); fi
done
exec "$program" "${options[@]}" "$root/bench/published_defaults.toml" "$root/configs/clusters" \
  "$root/configs/stacks.toml" "${files[@]}"
