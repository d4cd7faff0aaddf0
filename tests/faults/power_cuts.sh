#!/usr/bin/env bash
# Power cuts while a run trains and saves after every step: the run writes to a file system on a
# disk that keeps a list of its writes (logged_disk.c). For each cut, drawn at random, what the disk
# would then hold is mounted, and must have
# - checkpoints that verify byte by byte, and no other folder that looks like one,
# - the newest of them no older than the newest whose save had ended before the cut,
# - a link to the best of them, if any, that leads to one,
# - all that the run needs to go on from there to its end, where metrics, weights and the best
#   checkpoint are, bit by bit, those of a run that nobody disturbed.
# Ends with 77, "skipped", where the machine cannot: no root, loop devices, nbdkit or mkfs.
#
# usage: power_cuts.sh TESSERA DISK_LOG [--fs=ext4|xfs|btrfs] [--cuts=N] [--seed=N] [--dir=DIR]
#
# With the same --seed and --dir it goes on after the cuts that it has made.
set -euo pipefail

tessera=$(realpath "$1")
disk_log=$(realpath "$2")
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/faults/runs.sh
source "$here/runs.sh"
fs=ext4
declare -ri steps=30
declare -i cuts=500 seed=$RANDOM
directory=
for argument; do
  case $argument in
    --fs=*) fs=${argument#*=} ;;
    --cuts=*) cuts=${argument#*=} ;;
    --seed=*) seed=${argument#*=} ;;
    --dir=*) directory=${argument#*=} ;;
    *)
      echo "power_cuts.sh: no option $argument" >&2
      exit 2
      ;;
  esac
done

skip() {
  echo "skipped: $*"
  exit 77
}

[[ $(id -u) == 0 ]] || skip "power cuts need root, who mounts"
for program in nbdkit nbdfuse fusermount3 losetup cc "mkfs.$fs"; do
  command -v "$program" >/dev/null || skip "no $program"
done
[[ -e /usr/include/nbdkit-plugin.h ]] || skip "no nbdkit-plugin-dev"
[[ -e /dev/fuse && -e /dev/loop-control ]] || skip "no /dev/fuse or /dev/loop-control"

# The disks lie in memory: only the order of what they are told counts.
[[ -n $directory ]] || directory=$(mktemp -d /dev/shm/tessera-cuts-XXXXXX)
mkdir -p "$directory"
cd "$directory"
mounted=
loop=
disk=
clean_up() {
  [[ -z $mounted ]] || umount "$mounted" 2>/dev/null || umount --lazy "$mounted" || true
  [[ -z $loop ]] || losetup --detach "$loop" || true
  [[ -z $disk ]] || fusermount3 -u "$disk" 2>/dev/null || true
  wait || true
}
trap clean_up EXIT

mount_disk() { # FILE
  loop=$(losetup --direct-io="$2" --find --show "$1") || skip "no loop device"
  mkdir -p mnt
  mount "$loop" mnt || {
    echo "cannot mount $1 ($fs)"
    exit 1
  }
  mounted=$PWD/mnt
}

unmount_disk() {
  umount mnt
  mounted=
  losetup --detach "$loop"
  loop=
}

train() { # RUN LOG
  "$tessera" train run.toml --run.dir="$1" >"$2" 2>&1
}

# The run that is cut: `base` is the disk before it, `list` what the disk was told since, `marks`
# how long the list was when each step had its line.
record_run() {
  cc -O2 -Wall -Wextra -shared -fPIC "$here/logged_disk.c" -o logged_disk.so
  case $fs in
    ext4) truncate --size=64M base && mkfs.ext4 -q base ;;
    xfs) truncate --size=320M base && mkfs.xfs -q base ;;
    btrfs) truncate --size=160M base && mkfs.btrfs -q base ;;
    *) skip "no file system $fs here" ;;
  esac
  cp --sparse=always base image
  touch disk
  nbdfuse disk --command nbdkit -s --exit-with-parent "$PWD/logged_disk.so" \
    image="$PWD/image" log="$PWD/list" &
  disk=$PWD/disk
  local -i i
  for ((i = 0; i < 100; ++i)); do
    [[ $(stat --format=%s disk) != 0 ]] && break
    sleep 0.05
  done
  mount_disk disk on
  "$disk_log" watch mnt/run/metrics.jsonl list marks \
    "$tessera" train run.toml --run.dir=mnt/run >cut-run.log 2>&1 || {
    cat cut-run.log
    exit 1
  }
  unmount_disk
  fusermount3 -u disk
  disk=
  wait
  touch recorded
}

fail() {
  echo "cut $cut of $fs (share $share, seed $seed): $*"
  [[ ! -e cut.log ]] || tail -n 5 cut.log
  exit 1
}

check_cut() { # NEWEST_STEP_WITH_A_LINE
  local -i newest=0 step
  local path best=mnt/run/checkpoints/best
  [[ ! -L $best || -e $best/manifest.json ]] || fail "the best checkpoint, $(readlink $best), is gone"
  for path in mnt/run/checkpoints/step-*; do
    [[ -e $path ]] || continue
    "$tessera" checkpoint verify "$path" >cut.log 2>&1 || fail "$path does not verify"
    step=$((10#${path##*step-}))
    newest=$((step > newest ? step : newest))
  done
  # The line of a step comes before its save, and after the one before.
  ((newest >= $1 - 1)) || fail "the newest checkpoint is of step $newest, expected $(($1 - 1))"
  train mnt/run cut.log || fail "does not go on"
  expect_same mnt/run expected || fail "not the undisturbed run"
  path=$(readlink expected/checkpoints/best) || fail "the undisturbed run has no best checkpoint"
  [[ $(readlink "$best") == "$path" ]] ||
    fail "the best checkpoint is $(readlink "$best")"
}

# As write_run(), with validations, after each of which the best checkpoint may be another one.
write_validating_run() {
  write_run 1 2 2
  sed -i 's/sequence_length = 32/&, validation_share = 0.05/' run.toml
  printf '%s\n' "validation.every = 3" "optimizer.lr = 0.03" "schedule.decay_ratio = 0" >>run.toml
}

[[ -e run.toml ]] || write_validating_run
[[ -e expected/metrics.jsonl ]] || train expected expected.log
[[ -e recorded ]] || record_run
declare -i cut done_cuts=0
[[ ! -e "done-$seed" ]] || done_cuts=$(<"done-$seed")
for ((cut = done_cuts; cut < cuts; ++cut)); do
  # From mount to unmount; a number of the seed's own.
  share=$(awk -v seed="$seed" -v cut="$cut" \
    'BEGIN { srand(seed * 1000003 + cut); rand(); printf "%.9f", rand() }')
  step=$("$disk_log" cut base list marks "$share" "$((seed * 1000003 + cut))" cut.image)
  mount_disk cut.image off
  check_cut "$step"
  unmount_disk
  echo $((cut + 1)) >"done-$seed"
done
echo "$fs: $cuts cuts, each whole to the last save that had ended; seed $seed"
cd /
[[ $directory != /dev/shm/tessera-cuts-* ]] || rm -rf "$directory"
