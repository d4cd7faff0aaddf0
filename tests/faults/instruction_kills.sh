#!/usr/bin/env bash
# Kills one of two ranks with SIGKILL before each instruction of a step (or each EVERY-th), as
# threads of a process and, where MPI= names a launcher, as processes. Each time the same command
# must go on to the end, where metrics and weights are, bit by bit, those of a run that nobody
# disturbed.
#
# usage: instruction_kills.sh TESSERA TRAINING_WITH_KILL [--every=N] [--mpirun=PROGRAM] [--dir=DIR]
#
# With the same --dir it goes on after the positions that it has tried.
set -euo pipefail

tessera=$(realpath "$1")
training_with_kill=$(realpath "$2")
shift 2
# shellcheck source=tests/faults/runs.sh
source "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
declare -i every=1
mpirun=
directory=
for argument; do
  case $argument in
    --every=*) every=${argument#*=} ;;
    --mpirun=*) mpirun=${argument#*=} ;;
    --dir=*) directory=${argument#*=} ;;
    *)
      echo "instruction_kills.sh: no option $argument" >&2
      exit 2
      ;;
  esac
done
is_temporary=no
if [[ -z $directory ]]; then
  directory=$(mktemp -d)
  is_temporary=yes
fi
mkdir -p "$directory"
cd "$directory"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

declare -ri steps=8 step=6
# begin NAME PROGRAM...: one process, or as many as ranks.
begin() {
  local launch=$1
  shift
  case $launch in
    threads) "$@" --parallel.ranks=2 ;;
    mpi) "$mpirun" -n 2 --oversubscribe "$@" ;;
  esac
}

try_all() { # LAUNCH
  local launch=$1
  local -i rank item items tried=0
  [[ -e expected/metrics.jsonl ]] ||
    begin threads "$tessera" train run.toml --run.dir=expected >expected.log 2>&1
  for rank in 0 1; do
    rm -rf "run-$launch"
    items=$(begin "$launch" "$training_with_kill" "$step:$rank:count" run.toml \
      --run.dir="run-$launch" 2>count.log)
    ((items > 20)) || {
      echo "rank $rank has $items instructions"
      exit 1
    }
    for ((item = 0; item < items; item += every)); do
      [[ -e "done-$launch-$rank-$item" ]] && continue
      rm -rf "run-$launch"
      local -i code=0
      begin "$launch" "$training_with_kill" "$step:$rank:$item" run.toml \
        --run.dir="run-$launch" >killed.log 2>&1 || code=$?
      ((code != 0 && code != 3)) || fail "$launch, rank $rank, instruction $item: not killed ($code)"
      begin "$launch" "$tessera" train run.toml --run.dir="run-$launch" >resumed.log 2>&1 ||
        fail "$launch, rank $rank, instruction $item: does not go on"
      expect_same "run-$launch" expected ||
        fail "$launch, rank $rank, instruction $item: not the undisturbed run"
      touch "done-$launch-$rank-$item"
      tried+=1
    done
    echo "$launch: rank $rank killed before $(((items + every - 1) / every)) of $items instructions"
  done
}

fail() {
  echo "$*"
  tail -n 5 killed.log resumed.log
  exit 1
}

[[ -e run.toml ]] || write_run 2 1
try_all threads
[[ -z $mpirun ]] || try_all mpi
cd /
[[ $is_temporary == no ]] || rm -rf "$directory"
