#!/usr/bin/env bash
# The recipes say what the program says now, each in its head and in its row of docs/recipes, and
# those for a laptop train from a clean checkout.
#
# usage: recipes_test.sh TESSERA SOURCE_DIR
set -euo pipefail
TESSERA=$(realpath "$1")
export TESSERA
source=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "recipes_test: $*" >&2
  exit 1
}

cd "$source"
# Compiling 405B on 16,384 ranks takes as long as all the others together: bench/recipes.sh --check
# has it.
mapfile -t names < <(find configs/recipes -name '*.toml' ! -name '*405b*' ! -name 'laptop*' -printf '%f\n' |
  sed 's/\.toml$//')
((${#names[@]} >= 5)) || fail "found ${#names[@]} recipes"
bench/recipes.sh --check --steps "${names[@]}" || fail "the recipes are of another day"
# What products need on a CPU depends on its instructions.
if "$TESSERA" doctor | grep --quiet 'matrix products: AVX-512 with BF16'; then
  bench/recipes.sh --check laptop-6m || fail "the page of laptop-6m is of another day"
  bench/recipes.sh --check --steps laptop-27m || fail "laptop-27m is of another day"
else
  echo "not compared, on this processor: the figures of laptop-6m and laptop-27m"
fi

# Each has its page, and the page its tables.
for file in configs/recipes/*.toml; do
  page=docs/recipes/$(basename "$file" .toml).md
  grep --quiet '^<!-- changes -->$' "$page" || fail "$page has no table of changes"
done

# A wrong figure is found.
mkdir --parents "$work/tree/docs"
cp --recursive bench configs "$work/tree"
cp --recursive docs/recipes "$work/tree/docs"
(cd "$work/tree" && bench/recipes.sh --check --steps llama3-1b) >"$work/log" 2>&1 ||
  fail "a copy of the tree is refused"
sed --in-place 's/^#   memory [0-9.]*/#   memory 1.25/' "$work/tree/configs/recipes/llama3-1b.toml"
! (cd "$work/tree" && bench/recipes.sh --check --steps llama3-1b) >"$work/log" 2>&1 ||
  fail "a wrong figure is not found"
grep --quiet '^-#   memory 1.25' "$work/log" || fail "the wrong figure is not shown"

for name in laptop-6m laptop-27m; do
  "$TESSERA" train "configs/recipes/$name.toml" --run.dir="$work/$name" \
    --tokenizer.path="$work/$name/tokenizer.json" --train.steps=2 --sample.tokens=4 \
    >"$work/log" 2>&1 || fail "$name does not train: $(cat "$work/log")"
  [[ $(wc -l <"$work/$name/metrics.jsonl") -ge 2 ]] || fail "$name has not made two steps"
done
