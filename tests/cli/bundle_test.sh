#!/usr/bin/env bash
# The tree of ./x bundle runs wherever it is moved, and takes nothing from this machine but the C
# library and what NVIDIA ships.
#
# usage: bundle_test.sh BUILD_DIR VERSION     BUILD_DIR is built; VERSION is what it must print
set -euo pipefail

build=$1
version=$2
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "bundle_test: $*" >&2
  exit 1
}

"$source/tools/bundle.sh" "$build" "$work/bundle" || fail "tools/bundle.sh"
mv "$work/bundle" "$work/moved"

bytes=$(du --summarize --apparent-size --block-size=1 "$work/moved" | cut -f 1)
((bytes <= 60000000)) || fail "the tree has $bytes bytes, expected at most 60,000,000"
for plugin in libtessera_cuda.so libtessera_nccl.so; do
  [[ ! -e $build/$plugin || -e $(find "$work/moved/lib" -name "$plugin") ]] ||
    fail "the build has $plugin, the tree has not"
done

while IFS= read -r file; do
  [[ $(readelf --sections --wide "$file") != *\ .@(symtab|debug_info)\ * ]] ||
    fail "$file is not stripped"
done < <(find "$work/moved" -type f \( -path '*/bin/*' -o -name '*.so*' \))

# What each of ours has as its first place to look for libraries.
while IFS= read -r file; do
  [[ $(readelf --dynamic "$file") == *@(RPATH|RUNPATH)\)*\[\$ORIGIN* ]] ||
    fail "$file has no rpath that begins with \$ORIGIN"
done < <(find "$work/moved" -type f \( -path '*/bin/*' -o -name 'libtessera*' \))

# No variable of the caller may help: neither to find libraries nor to find the build folder.
run() {
  (cd "$work" && env --ignore-environment PATH=/usr/bin:/bin HOME="$work" "$@")
}

# check_loaded COMMAND...: it ends well, and all that it loads lies in the tree but for what belongs
# to the machine.
check_loaded() {
  run LD_DEBUG=libs LD_DEBUG_OUTPUT="$work/loaded" "$@" >"$work/output" 2>&1 ||
    fail "$*: $(<"$work/output")"
  local -a foreign
  mapfile -t foreign < <(
    sed -n 's/.*calling init: //p' "$work"/loaded.* | sort --unique |
      grep --invert-match --fixed-strings "$work/moved/" |
      grep --invert-match --extended-regexp \
        '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|cuda|cublasLt|cudnn[^/]*|nccl|nvidia-[^/]*))\.so[^/]*$'
  )
  rm -f "$work"/loaded.*
  ((${#foreign[@]} == 0)) || fail "$* loads ${foreign[*]}"
}

printed=$(run "$work/moved/bin/tessera" --version)
[[ $printed == *"$version"* ]] || fail "--version must say $version, but prints: $printed"

check_loaded "$work/moved/bin/tessera" doctor
grep --quiet '^kernels ' "$work/output" || fail "doctor prints: $(<"$work/output")"
if grep --quiet '^gpu  *none that a run can use' "$work/output"; then
  for what in tests core train; do
    ! printed=$(TESSERA_BUNDLE=$work/moved "$source/bench/gpu.sh" "$what" 2>&1) ||
      fail "gpu.sh $what must fail without a GPU"
    [[ $printed == *"no GPU that Tessera can use"* ]] || fail "gpu.sh $what prints: $printed"
  done
fi

check_loaded "$work/moved/bin/tessera" train "$source/configs/runs/quickstart.toml" \
  --run.dir="$work/run" --tokenizer.path="$work/tokenizer.json" --tokenizer.train_vocab=300 \
  --data.files="$source/README.md" --data.sequence_length=64 --model.vocab=300 --model.layers=1 \
  --train.steps=2 --train.global_batch=1 --train.microbatch=1 --schedule.warmup=0 \
  --sample.tokens=8
[[ $(wc --lines <"$work/run/metrics.jsonl") == 2 ]] || fail "train prints: $(<"$work/output")"
