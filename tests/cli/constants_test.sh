#!/usr/bin/env bash
# What predictions may be fitted by: at most 12 constants a chip, 3 a level, 4 a stack of software,
# and 60 in all, counted in configs/; and nothing in cost/ or simulate/ that knows a published
# table, a model or a system by its name.
#
# usage: constants_test.sh SOURCE_DIRECTORY
set -euo pipefail
root="$1"
failed=0

fail() {
  echo "$1" >&2
  failed=1
}

# Numbers of the keys of a section, strings such as "1900 ns" among them; names and sources are none.
# A section without any, where grep fails, has 0.
count_numbers() { # FILE SECTION
  awk -v section="[$2]" '
    /^\[/ { inside = ($0 == section) }
    inside && !/^\[/ && !/^(source|name) *=/ { print }' "$1" | sed 's/#.*//' |
    { grep -oE '(= *|= *")[0-9.]+([eE][-+]?[0-9]+)?' || true; } | wc -l
}

declare -A curves
for file in "$root"/configs/clusters/*.toml; do
  count="$(count_numbers "$file" device.curve)"
  if ((count > 12)); then
    fail "$file: [device.curve] has $count constants, expected at most 12"
  fi
  if ((count > 0)); then
    curve="$(awk '/^\[/ { inside = ($0 == "[device.curve]") } inside && /^[a-z_]+ = /' "$file" |
      md5sum)"
    curves["$curve"]="$count"
  fi
done
total=0
for count in "${curves[@]}"; do
  total=$((total + count))
done
while read -r stack; do
  count="$(count_numbers "$root/configs/stacks.toml" "$stack")"
  if ((count > 4)); then
    fail "configs/stacks.toml: [$stack] has $count constants, expected at most 4"
  fi
  total=$((total + count))
done < <(grep -oE '^\[[^]]+' "$root/configs/stacks.toml" | tr -d '[')
if ((total == 0 || total > 60)); then
  fail "found $total constants of chips and stacks in all, expected some, at most 60"
fi
echo "$total constants of chips and stacks"

names='megatron|deepspeed|vtrain|llm-?foundry|mosaic|torchtitan|dgxc|nemo|lumi|bigscience|seqpar'
names+='|fms|llama|gpt|gemini|mpt-|selene|jean'
while read -r file; do
  if found="$(sed 's://.*::' "$file" | grep -niE "$names")"; then
    fail "$file: found a name of a table, a model or a system, expected none: $found"
  fi
done < <(find "$root"/src/tessera/{cost,simulate} -name '*.h' -o -name '*.cc' | grep -v '_test\.cc$')
exit "$failed"
