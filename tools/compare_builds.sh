#!/usr/bin/env bash
# Shows that a change of the house changes no run: for each of a dozen runs, the programs that two
# builds compile are the same text, except for the renames of tools/renames.sed, and 20 steps of
# training give the same losses and gradient norms to the last digit. So are the programs of three
# runs on GPUs, which need none.
#
# usage: tools/compare_builds.sh OLD_TESSERA NEW_TESSERA [FOLDER]
#
# The two programs are such as `cmake --install` leaves, or one of them is build/tessera; FOLDER keeps
# what the runs leave (default: a temporary one, removed).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ $# -lt 2 ]]; then
  sed --quiet 's/^# usage: /usage: /p' "$0"
  exit 2
fi
old=$(realpath "$1")
new=$(realpath "$2")
if [[ -n ${3:-} ]]; then
  mkdir -p "$3"
  folder=$(realpath "$3")
else
  folder=$(mktemp --directory)
  trap 'rm -rf "$folder"' EXIT
fi

# NAME, then the keys in which a run differs from the common ones. WEIGHTS are those of the first.
runs=$(cat <<'TABLE'
llama         --model.name=llama3 --train.microbatch=2
gpt2          --model.name=gpt2 --train.dtype=bf16
neox          --model.name=neox --memory.recompute=full
tensor        --model.name=llama3 --parallel.ranks=4 --parallel.tensor=2
gpt2_tensor   --model.name=gpt2 --parallel.ranks=2 --parallel.tensor=2 --parallel.sequence_parallel=false
ddp           --model.name=llama3 --parallel.ranks=2 --state.preset=ddp --train.dtype=bf16
zero1         --model.name=neox --parallel.ranks=2 --state.preset=zero1
topo          --model.name=llama3 --parallel.ranks=4 --state.preset=topo --cluster.file=configs/clusters/virtual-4.toml
zeropp        --model.name=gpt2 --parallel.ranks=4 --state.preset=zeropp --cluster.file=configs/clusters/virtual-4.toml
secondary     --model.name=neox --parallel.ranks=4 --state.secondary=1 --state.wire_param=full
float8        --model.name=llama3 --float8.recipe=rowwise --parallel.ranks=2
lora          --model.weights=WEIGHTS --lora.rank=4 --parallel.ranks=2 --train.dtype=bf16
no_overlap    --model.name=neox --parallel.ranks=2 --comm.overlap=false --optimizer.moments=bf16
TABLE
)

# The same ids on every machine: digits of squares, below the vocabulary.
write_tokens() {
  local i text=""
  for ((i = 0; i < 4096; ++i)); do
    text+=$(printf '\\x%02x\\x00' $((i * i % 251)))
  done
  # shellcheck disable=SC2059 # the text is made of escapes
  printf "$text" >"$folder/tokens.bin"
}

common=(--model.layers=2 --model.dim=64 --model.heads=4 --model.ffn=128 --model.vocab=256
  "--data.files=[\"$folder/tokens.bin\"]" --data.format=tokens --data.sequence_length=64
  --train.steps=20 --train.global_batch=8 --schedule.warmup=2 --run.threads=1
  --checkpoint.every=0 --log.tensorboard=false)

# run PROGRAM SIDE NAME KEY...
run() {
  local program=$1 out=$folder/$2-$3
  shift 3
  rm -rf "$out"
  "$program" explain --program "${common[@]}" "$@" --run.dir="$out" >"$out.txt"
  "$program" train "${common[@]}" "$@" --run.dir="$out" </dev/null 2>"$out.log" >&2 ||
    { cat "$out.log" && return 1; }
  sed --regexp-extended 's/.*("step":[0-9]+).*("loss":[^,]*).*("grad_norm":[^,]*).*/\1 \2 \3/' \
    "$out/metrics.jsonl" >"$out.losses"
  [[ $(grep --count '^"step":[0-9]* "loss":[0-9.e+-]* "grad_norm":[0-9.e+-]*$' "$out.losses") == 20 ]] ||
    { echo "$out.losses does not hold 20 losses" && return 1; }
}

write_tokens
failures=0
while read -r name keys; do
  read -ra keys <<<"${keys/WEIGHTS/$folder/old-llama/checkpoints/step-00000020}"
  run "$old" old "$name" "${keys[@]}"
  run "$new" new "$name" "${keys[@]}"
  sed --regexp-extended --file=tools/renames.sed "$folder/old-$name.txt" >"$folder/renamed-$name.txt"
  verdict=same
  diff "$folder/renamed-$name.txt" "$folder/new-$name.txt" | head -20 || verdict="another program"
  diff "$folder/old-$name.losses" "$folder/new-$name.losses" | head -20 || verdict="other losses"
  printf '%-12s %s, %d lines\n' "$name" "$verdict" "$(wc -l <"$folder/new-$name.txt")"
  [[ $verdict == same ]] || failures=$((failures + 1))
done <<<"$runs"
# What a GPU gets, emulated or not: programs alone, where both builds can say it without one.
while read -r name keys; do
  read -ra keys <<<"$keys"
  for side in old new; do
    "${!side}" explain --program --target=cuda --train.dtype=bf16 "${common[@]}" "${keys[@]}" \
      --run.dir="$folder/none" >"$folder/$side-$name.txt" 2>"$folder/$side-$name.log" ||
      grep --quiet "unknown key.*target\|--target" "$folder/$side-$name.log" ||
      { cat "$folder/$side-$name.log" && exit 1; }
  done
  if [[ ! -s $folder/old-$name.txt ]]; then
    echo "$name not compared: the old build knows no --target"
    continue
  fi
  sed --regexp-extended --file=tools/renames.sed "$folder/old-$name.txt" >"$folder/renamed-$name.txt"
  verdict=same
  diff "$folder/renamed-$name.txt" "$folder/new-$name.txt" | head -20 || verdict="another program"
  printf '%-12s %s, %d lines\n' "$name" "$verdict" "$(wc -l <"$folder/new-$name.txt")"
  [[ $verdict == same ]] || failures=$((failures + 1))
done <<'TABLE'
gpu_llama    --model.name=llama3 --train.microbatch=2
gpu_gpt2     --model.name=gpt2 --parallel.ranks=4 --parallel.tensor=2 --data.document_mask=false
gpu_float8   --model.name=llama3 --float8.recipe=tensorwise --parallel.ranks=2
TABLE
exit $((failures > 0))
