#!/usr/bin/env bash
# Runs the cases of a GoogleTest program several at a time, each in a process of its own: for tests
# that mostly wait. Prints what each printed, in the order of the program.
#
# usage: side_by_side.sh NUM_AT_A_TIME PROGRAM ARGUMENT...
set -euo pipefail

declare -i at_a_time=$1
shift
output=$(mktemp --directory)
trap 'rm -rf "$output"' EXIT

# Suites start at the margin, their cases are indented, and comments follow.
list=$("$@" --gtest_list_tests)
mapfile -t cases < <(awk '/^[^ ]+\.( |$)/ { suite = $1 } /^  / { print suite $1 }' <<<"$list")
if ((${#cases[@]} == 0)); then
  echo "no case of: $*" >&2
  exit 1
fi

# Of a part of the cases, as GoogleTest has it, each process would take a part of its one.
declare -i parts=${GTEST_TOTAL_SHARDS:-1} part=${GTEST_SHARD_INDEX:-0}
unset GTEST_TOTAL_SHARDS GTEST_SHARD_INDEX
for i in "${!cases[@]}"; do
  ((i % parts == part)) || unset "cases[$i]"
done

declare -i failures=0 running=0
for i in "${!cases[@]}"; do
  if ((running == at_a_time)); then
    wait -n || failures+=1
    running+=-1
  fi
  GTEST_FILTER=${cases[i]} "$@" >"$output/$i" 2>&1 &
  running+=1
done
for ((; running > 0; running -= 1)); do
  wait -n || failures+=1
done
for i in "${!cases[@]}"; do
  cat "$output/$i"
done
exit $((failures > 0))
