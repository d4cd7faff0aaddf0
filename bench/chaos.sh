#!/usr/bin/env bash
# What becomes of runs whose processes are killed, whose checkpoints are damaged, and whose disks
# fail: the long forms of what the tests of tests/faults/ try shortly. It installs what is missing and
# builds first.
#
# usage: bench/chaos.sh [kills|instructions|damages|cuts|disks]... [--seed=N] [--dir=DIR]
#
#   kills         500 SIGKILLs at random instants, at least 80 in each of start, restore, step, save,
#                 and publish or prune, of one rank, of threads and of processes over MPI
#   instructions  one SIGKILL before every instruction of a step, on either of two ranks, as threads
#                 and over MPI
#   damages       10,000 damages to checkpoints, each to be refused with file and reason
#   cuts          500 power cuts on each of ext4, xfs and btrfs
#   disks         disks that are full, fail, are slow, and cannot be written
#
# Without a name all of them. Each prints its seed; with the same --seed and --dir a part that was
# stopped goes on (damages, of a minute at most, begin anew; TESSERA_DAMAGE_FIRST begins at one).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -i seed=$RANDOM
directory=$(mktemp -d -u)
declare -a parts=()
for argument; do
  case $argument in
    kills | instructions | damages | cuts | disks) parts+=("$argument") ;;
    --seed=*) seed=${argument#*=} ;;
    --dir=*) directory=${argument#*=} ;;
    *)
      echo "chaos.sh: no part $argument" >&2
      exit 2
      ;;
  esac
done
((${#parts[@]} > 0)) || parts=(kills instructions damages cuts disks)

programs=build/tests/faults
source tools/packages.sh
source tools/build.sh
ensure_packages build test faults
build_targets release all tests >/dev/null
declare -a launcher=()
! command -v mpirun.openmpi >/dev/null || launcher=(--mpirun=mpirun.openmpi)
mkdir -p "$directory"
echo "seed $seed; directory $directory; $(uname -r), $(nproc) cores, $(. /etc/os-release && echo "$PRETTY_NAME")"

declare -i failures=0
# part COMMAND...: 77 means that this machine cannot.
part() {
  local -i code=0
  "$@" || code=$?
  ((code == 0 || code == 77)) || failures+=1
}

for name in "${parts[@]}"; do
  echo "== $name"
  case $name in
    kills)
      part "$programs/kills" build/tessera build/tests/libtessera_faults.so --kills=500 --each=80 \
        --seed="$seed" --dir="$directory/kills" "${launcher[@]}"
      ;;
    instructions)
      part tests/faults/instruction_kills.sh build/tessera "$programs/training_with_kill" \
        --dir="$directory/instructions" "${launcher[@]}"
      ;;
    damages)
      TESSERA_DAMAGES=10000 TESSERA_DAMAGE_SEED=$seed part build/tests/checkpoint_test \
        --gtest_brief=1 --gtest_filter=DamageTest.IsAlwaysSeen
      ;;
    cuts)
      for fs in ext4 xfs btrfs; do
        part tests/faults/power_cuts.sh build/tessera "$programs/disk_log" --fs="$fs" --cuts=500 \
          --seed="$seed" --dir="$directory/cuts-$fs"
      done
      ;;
    disks) part tests/faults/bad_disks.sh build/tessera ;;
  esac
done
exit $((failures > 0))
