#!/usr/bin/env bash
# Ranks that are processes, over one MPI library: what every communicator must do, the same bits as
# ranks that are threads, and how runs fail. Ends with 77, which is "skipped", where the library is
# not installed.
#
# usage: mpi_test.sh BUILD_DIR MPI_RANKS openmpi|mpich NUM_RANKS [conformance]
#
# With `conformance`, runs do not fail.
# MPI_RANKS is the program of a rank, of this build or of one whose tests run on this one's library
# (TESSERA_TEST_PROGRAMS), under a sanitizer's runtime that TESSERA_PRELOAD names.
set -euo pipefail

build=$1
program=$2
library=$3
declare -i ranks=$4
only=${5:-}

skip() {
  echo "skipped: $*"
  exit 77
}

[[ -e $build/libtessera_$library.so ]] ||
  skip "the build has no libtessera_$library.so (Debian package lib$library-dev)"
mpirun=$(command -v "mpirun.$library") || skip "no mpirun.$library"

# In a build with the address sanitizer: what MPI libraries do not free is not ours.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0

declare -a launch
case $library in
  openmpi)
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    launch=("$mpirun" --oversubscribe)
    ;;
  mpich) launch=("$mpirun") ;;
esac

# Of the ranks alone: mpirun has faults of its own.
preload=${program%/*}/libfailing_$library.so
declare -a rank=(env "LD_PRELOAD=$preload" "$program")
if [[ -n ${TESSERA_PRELOAD:-} ]]; then
  rank=(env "LD_LIBRARY_PATH=$build" "LD_PRELOAD=$TESSERA_PRELOAD $preload" "$program")
fi

results=$(mktemp --directory)
trap 'rm -rf "$results"' EXIT

# check NAME done|failed|any NUM_RANKS TEXT: runs mpi_ranks NAME, which must end in that way, with
# TEXT from that many ranks. A failed run ends with a rank's exit code, 5, or with 9, where MPICH's
# mpirun was quicker to kill the next rank, or with 1, where it says that it hung up on it; one that
# hangs is ended, with 124.
check() {
  local output code=0 end said
  output=$(timeout 240 "${launch[@]}" -n "$ranks" "${rank[@]}" "$1" 2>&1) || code=$?
  case $code in
    0) end=done ;;
    5 | 9) end=failed ;;
    1) [[ $output == *"Hangup (signal 1)"* ]] && end=failed || end=wrong ;;
    *) end=wrong ;;
  esac
  [[ $2 == any && $code != 124 ]] && end=any
  said=$(grep --count "^rank [0-9]*: $4" <<<"$output" || true)
  if [[ $end != "$2" || $said != "$3" ]]; then
    echo "$1: exit code $code, expected: $2; $said ranks say \"$4\", expected $3; output:"
    echo "$output"
    return 1
  fi
  echo "$1: ok"
}

# The same, beside others: what each printed is shown at the end, in this order.
declare -ir at_a_time=4
declare -i failures=0 running=0 started=0
await_one() {
  wait -n || failures+=1
  running+=-1
}
start_check() {
  ((running < at_a_time)) || await_one
  check "$@" >"$results/$started" 2>&1 &
  started+=1
  running+=1
}

# Ranks that compute have the cores to themselves. In the other checks they wait for deadlines, and
# for each other, most of the time.
check conformance done "$ranks" conforms || failures+=1
[[ $only != conformance ]] || exit $((failures > 0))
start_check patience done "$ranks" "is patient"
for failure in MemberStaysAway MemberMakesNoGroup MembersDisagreeOnSize MembersDisagreeOnLongSize \
  MembersDisagreeOnOperation ARankAborts TransferNeverComes MembersDisagreeOnTransfer \
  MembersDisagreeOnLongTransfer ARankAbortsATransfer unreachable send_fails; do
  start_check "$failure" failed "$ranks" "as expected"
done
# By itself mpirun ends the survivors of a rank that was killed. Where Open MPI's is told not to,
# they notice by themselves; it then hides their exit codes.
if [[ $library == openmpi ]]; then
  launch+=(--enable-recovery)
  start_check killed any $((ranks - 1)) "as expected"
fi
while ((running > 0)); do
  await_one
done
for ((i = 0; i < started; ++i)); do
  cat "$results/$i"
done
exit $((failures > 0))
