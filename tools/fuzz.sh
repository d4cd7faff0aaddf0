#!/usr/bin/env bash
# Runs every fuzzer of the preset `fuzz` for some seconds from its seeds; ./x fuzz builds them first.
# An input that fails is left in build-fuzz/fuzz/ and named: put it into fuzz/corpus/NAME.
#
# usage: tools/fuzz.sh [SECONDS [NAME...]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-30}
shift || true
for list in build-fuzz/fuzz/*.inputs; do
  program=${list%.inputs}
  name=$(basename "${program%_fuzzer}")
  [[ $# -eq 0 || " $* " == *" $name "* ]] || continue
  echo "== $name, $seconds s"
  corpus=build-fuzz/fuzz/corpus-$name
  mkdir -p "$corpus"
  # Directories are copied by content, so that what a run finds does not end up among the sources.
  while read -r input; do
    [[ ! -e $input ]] || cp -R "$input" "$corpus/"
  done <"$list"
  "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=65536 \
    -print_final_stats=1 -artifact_prefix="build-fuzz/fuzz/$name-" "$corpus" 2>&1 |
    { grep --extended-regexp 'ERROR|SUMMARY|number_of_executed|Test unit|^Done' || true; }
done
