#!/usr/bin/env bash
# Runs a GoogleTest program as several shards at a time, beside which nothing else is to run: for
# tests that mostly wait. Prints what each printed, one after the other.
#
# usage: side_by_side.sh NUM_SHARDS PROGRAM ARGUMENT...
set -euo pipefail

declare -i shards=$1 failures=0
shift
output=$(mktemp --directory)
trap 'rm -rf "$output"' EXIT

pids=()
for ((shard = 0; shard < shards; ++shard)); do
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$@" >"$output/$shard" 2>&1 &
  pids+=($!)
done
for ((shard = 0; shard < shards; ++shard)); do
  wait "${pids[shard]}" || failures+=1
  cat "$output/$shard"
done
exit $((failures > 0))
