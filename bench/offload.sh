#!/usr/bin/env bash
# A model of 1.04 billion parameters in a control group of 6 GB, whose page cache counts: optimizer
# state, parameters and activations in a file. Prints a step's seconds and the group's peak over the
# plan; the losses of the same run without a limit, where the machine has the memory, are to be the
# same bits; and what becomes of the same model in PyTorch in the same group.
#
# usage: bench/offload.sh [STEPS [DIRECTORY]]     as root, for the control group; the directory, on a
#                                                 disk, needs 40 GB
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
steps=${1:-5}
work=$(mktemp -d --tmpdir="${2:-.}" offload-XXXXXX)
tessera=$PWD/build/tessera
limit=6000000000
if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
  group=/sys/fs/cgroup/tessera-offload files=(memory.max memory.peak memory.swap.max)
else
  group=/sys/fs/cgroup/memory/tessera-offload
  files=(memory.limit_in_bytes memory.max_usage_in_bytes memory.memsw.limit_in_bytes)
fi
mkdir --parents "$group"
# A group that a killed process still leaves is no reason to fail.
trap 'rm --recursive --force "$work"; rmdir "$group" || true' EXIT
echo "$limit" >"$group/${files[0]}"
# A new group begins at 0; only an older one must be reset, which kernels before 6.12 cannot.
echo 0 >"$group/${files[1]}" 2>/dev/null || true
if [[ -w $group/${files[2]} ]]; then
  [[ ${files[2]} == memory.swap.max ]] && echo 0 >"$group/${files[2]}" || echo "$limit" >"$group/${files[2]}"
fi

# Runs a command in the group.
in_group() { (echo "$BASHPID" >"$group/cgroup.procs" && exec "$@"); }

cat docs/*.md docs/*/*.md >"$work/text.txt"
cat >"$work/run.toml" <<END
[model]
name = "llama3"
dim = 2048
layers = 16
heads = 32
kv_heads = 8
ffn = 8192
vocab = 32000
tied = true
[tokenizer]
path = "$work/tokenizer.json"
train_vocab = 1024
[data]
files = ["$work/text.txt"]
sequence_length = 512
[train]
steps = $steps
global_batch = 1
microbatch = 1
[optimizer]
lr = 1e-4
[memory]
recompute = "full"
END
offload=(--memory.offload_optimizer=all --memory.offload_parameters=all --memory.offload_activations=all)
losses() { sed --quiet 's/.*"loss":\([^,]*\).*/\1/p' "$work/$1/metrics.jsonl"; }
seconds() { sed --quiet 's/.*"step_seconds":\([^,}]*\).*/\1/p' "$work/$1/metrics.jsonl" | sort --numeric-sort | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }

"$tessera" explain "$work/run.toml" "${offload[@]}" | sed --quiet '/^memory/,/^$/p'
in_group "$tessera" train "$work/run.toml" --run.dir="$work/small" --memory.limit_bytes=$limit "${offload[@]}"
plan=$("$tessera" explain "$work/run.toml" "${offload[@]}" --json | sed --quiet 's/.*"needed": *\([0-9]*\).*/\1/p' | head -1)
peak=$(cat "$group/${files[1]}")
echo "a step: $(seconds small) s; peak of the group: $((peak / 1000000)) MB, of the plan: $((plan / 1000000)) MB"
if (($(awk '/MemAvailable/ { print $2 }' /proc/meminfo) > 17 * 1024 * 1024)); then
  "$tessera" train "$work/run.toml" --run.dir="$work/large"
  echo "a step without limit: $(seconds large) s"
  diff <(losses small) <(losses large)
  echo "losses: the same bits in $steps steps"
fi
echo '{"steps": 1}' | in_group /usr/bin/python3 bench/peers/torch_llama.py --dim=2048 --layers=16 --heads=32 --ffn=8192 \
  --vocab=32000 --batch=1 --seq=512 --threads="$(nproc)" --dtype=f32 && code=0 || code=$?
echo "PyTorch in the same group: exit code $code"
