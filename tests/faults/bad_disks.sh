#!/usr/bin/env bash
# Disks that are full, fail, are slow, and cannot be written, under a run of two ranks that saves
# after every second step. No run may lose what it had saved, and each, once its disk is well again,
# goes on to the same bits as the run that nobody disturbed.
# Ends with 77, "skipped", where the machine cannot: no root, loop devices or nbdkit.
#
# usage: bad_disks.sh TESSERA [--dir=DIR]
set -euo pipefail

tessera=$(realpath "$1")
shift
# shellcheck source=tests/faults/runs.sh
source "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
declare -ri steps=30
directory=$(mktemp -d /dev/shm/tessera-disks-XXXXXX)
for argument; do
  case $argument in
    --dir=*) directory=${argument#*=} ;;
    *)
      echo "bad_disks.sh: no option $argument" >&2
      exit 2
      ;;
  esac
done

skip() {
  echo "skipped: $*"
  exit 77
}

[[ $(id -u) == 0 ]] || skip "needs root, who mounts"
for program in nbdkit nbdfuse fusermount3 losetup mkfs.ext4; do
  command -v "$program" >/dev/null || skip "no $program"
done
[[ -e /dev/fuse && -e /dev/loop-control ]] || skip "no /dev/fuse or /dev/loop-control"

mkdir -p "$directory/mnt"
cd "$directory"
loop=
clean_up() {
  umount mnt 2>/dev/null || umount --lazy mnt 2>/dev/null || true
  [[ -z $loop ]] || losetup --detach "$loop" || true
  fusermount3 -u disk 2>/dev/null || true
}
trap clean_up EXIT

train() { # RUN LOG [KEY...]
  "$tessera" train run.toml --run.dir="$1" --parallel.ranks=2 "${@:3}" >"$2" 2>&1
}

fail() { # NAME TEXT
  echo "$1: $2"
  tail -n 6 "$1.log"
  exit 1
}

# wait_for_steps N PROCESS: until the run has this many lines of metrics; fails where it ends before.
wait_for_steps() {
  local metrics=mnt/run/metrics.jsonl
  while [[ ! -e $metrics ]] || (($(wc -l <"$metrics") < $1)); do
    kill -0 "$2" || fail read-only "the run ended before step $1"
    sleep 0.002
  done
}

# verify NAME: what a broken run left is whole, and goes on to the expected end.
expect_goes_on() {
  local path
  for path in mnt/run/checkpoints/step-*; do
    [[ ! -e $path ]] || "$tessera" checkpoint verify "$path" >"$1.log" 2>&1 ||
      fail "$1" "$path does not verify"
  done
  train mnt/run "$1.log" || fail "$1" "does not go on"
  expect_same mnt/run expected || fail "$1" "not the undisturbed run"
  echo "$1: as undisturbed"
}

# attach FILTER KEY...: an ext4 on a disk behind a filter of nbdkit.
attach() {
  truncate --size=64M image
  mkfs.ext4 -q -F -E lazy_itable_init=0 image
  : >disk
  nbdfuse disk --command nbdkit -s --exit-with-parent --filter="$1" file image "${@:2}" &
  local -i i
  for ((i = 0; i < 100; ++i)); do
    [[ $(stat --format=%s disk) == 67108864 ]] && break
    sleep 0.05
  done
  loop=$(losetup --direct-io=on --find --show disk) || skip "no loop device"
  mount "$loop" mnt
}

detach() {
  umount mnt
  losetup --detach "$loop"
  loop=
  fusermount3 -u disk
  wait
}

full_disk() {
  mount -t tmpfs -o size=1500k tmpfs mnt
  local -i code=0
  train mnt/run full.log || code=$?
  ((code == 5)) || fail full "ended with $code, expected 5: the last save has no place"
  grep --quiet "No space left" full.log || fail full "says nothing of the disk"
  mount -o remount,size=20m mnt
  expect_goes_on full
  umount mnt
}

failing_disk() {
  attach error error-pwrite=EIO error-pwrite-rate=100% error-pwrite-file="$PWD/broken"
  (
    wait_for_steps 10
    touch broken
  ) &
  local -i code=0
  train mnt/run failing.log || code=$?
  ((code == 5)) || fail failing "ended with $code, expected 5: nothing can be written"
  umount --lazy mnt
  losetup --detach "$loop"
  loop=
  fusermount3 -uz disk
  wait
  # Another controller: the journal says what is there.
  loop=$(losetup --find --show image)
  mount "$loop" mnt
  expect_goes_on failing
  umount mnt
  losetup --detach "$loop"
  loop=
}

# One rank's part takes longer than a rank may be silent.
slow_disk() {
  attach delay wdelay=30ms
  local -i code=0
  train mnt/run slow.log --comm.deadline_seconds=2 || code=$?
  ((code == 0)) || fail slow "ended with $code, expected 0: a slow disk is no dead rank"
  expect_same mnt/run expected || fail slow "not the undisturbed run"
  echo "slow: as undisturbed"
  detach
}

# attach_loop: an ext4 without a filter, which an error makes read-only.
attach_loop() {
  truncate --size=64M image
  mkfs.ext4 -q -F -E lazy_itable_init=0 image
  loop=$(losetup --find --show image) || skip "no loop device"
  mount -o errors=remount-ro "$loop" mnt
}

detach_loop() {
  umount mnt
  losetup --detach "$loop"
  loop=
}

# Read-only before the run begins again, and from one step to the next, as after an error of the
# file system.
read_only_disk() {
  attach_loop
  "$tessera" train run.toml --run.dir=mnt/run --parallel.ranks=2 >read-only.log 2>&1 &
  local -i run=$! code=0
  wait_for_steps 10 "$run"
  kill -USR2 "$run"
  wait "$run" || fail read-only "a run that was asked to stop ended with $?"
  local before
  before=$(ls -lR mnt/run)
  mount -o remount,ro mnt
  train mnt/run read-only.log || code=$?
  ((code == 2 || code == 5)) || fail read-only "ended with $code, expected 2 or 5"
  grep --quiet "Read-only file system" read-only.log || fail read-only "says nothing of the disk"
  [[ $(ls -lR mnt/run) == "$before" ]] || fail read-only "something has changed"
  mount -o remount,rw mnt
  expect_goes_on read-only
  detach_loop
  local error=/sys/fs/ext4
  attach_loop
  error+=/${loop#/dev/}/trigger_fs_error
  [[ -w $error ]] || {
    echo "read-only from one step to the next: skipped: no $error to write"
    detach_loop
    return
  }
  "$tessera" train run.toml --run.dir=mnt/run --parallel.ranks=2 >read-only.log 2>&1 &
  run=$!
  wait_for_steps 10 "$run"
  echo test >"$error"
  code=0
  wait "$run" || code=$?
  ((code == 5)) || fail read-only "ended with $code, expected 5: nothing can be written"
  grep --quiet "Read-only file system" read-only.log || fail read-only "says nothing of the disk"
  umount mnt
  e2fsck -fp "$loop" >e2fsck.log || (($? == 1)) || fail read-only "e2fsck: $(<e2fsck.log)"
  mount "$loop" mnt
  expect_goes_on read-only
  detach_loop
}

write_run 2 1 2
sed -i 's/async = false/async = true/' run.toml
train expected expected.log || fail expected "does not train"
full_disk
failing_disk
slow_disk
read_only_disk
cd /
[[ $directory != /dev/shm/tessera-disks-* ]] || rm -rf "$directory"
