#!/usr/bin/env bash
# Writes what the simulator says of the recipes in configs/recipes/: into the head of each run file,
# into the tables of its page in docs/recipes/, and into its row of docs/recipes/index.md.
#
# usage: bench/recipes.sh [--check] [--steps] [NAME...]
#
# --check writes nothing, and fails where a file does not say what the simulator says now. --steps
# leaves the tables alone: only the recipes themselves are simulated. NAME... are recipes [all].
# bench/recipes.txt lists what the tables change. Builds the program first unless TESSERA names one.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

fail() {
  echo "recipes.sh: $*" >&2
  exit 1
}

check=no
steps=no
names=()
for argument in "$@"; do
  case $argument in
    --check) check=yes ;;
    --steps) steps=yes ;;
    -*) fail "found $argument, expected --check, --steps or the name of a recipe" ;;
    *) names+=("$argument") ;;
  esac
done
if ((${#names[@]} == 0)); then
  mapfile -t names < <(find configs/recipes -name '*.toml' -printf '%f\n' | sed 's/\.toml$//' | sort)
fi
if [[ -z ${TESSERA:-} ]]; then
  ninja -C build tessera >&2
  TESSERA=build/tessera
fi
export TESSERA
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# What all simulations of a recipe have.
with_of() {
  awk -v name="[$1]" '/^\[/ { inside = $0 == name; next } inside && $1 == "with" { $1 = ""; print }' \
    bench/recipes.txt
}

# The lines of a recipe in bench/recipes.txt, of that table: what is changed, a tab, and arguments.
lines_of() {
  awk -v name="[$1]" -v table="$2" '
    /^\[/ { inside = $0 == name; next }
    inside && $1 == table {
      sub(/^[a-z]+ +/, "")
      at = index($0, " | ")
      if (at == 0) { print "no \" | \" in: " $0 > "/dev/stderr"; exit 1 }
      what = substr($0, 1, at - 1)
      sub(/ +$/, "", what)
      print what "\t" substr($0, at + 3)
    }' bench/recipes.txt
}

# Each line is a job: where its JSON goes, a tab, and the arguments of tessera simulate.
list_jobs() {
  local name table number what arguments recipe
  for name in "${names[@]}"; do
    [[ -e configs/recipes/$name.toml ]] || fail "no recipe is called $name"
    recipe=configs/recipes/$name.toml$(with_of "$name")
    printf '%s\t%s\n' "$work/$name.json" "$recipe"
    [[ $steps == no ]] || continue
    for table in change rung; do
      number=0
      while IFS=$'\t' read -r what arguments; do
        number=$((number + 1))
        printf '%s\t%s\n' "$work/$name.$table.$number.json" "$recipe $arguments"
      done < <(lines_of "$name" "$table")
    done
  done
}

# The arguments have no spaces within.
simulate_one() {
  local file arguments
  IFS=$'\t' read -r file arguments <<<"$1"
  # shellcheck disable=SC2086
  "$TESSERA" simulate $arguments --json >"$file" || {
    echo "recipes.sh: fails: tessera simulate $arguments" >&2
    return 1
  }
}
export -f simulate_one

# facts FILE: what the tables need of a simulation, as NAME=VALUE lines. By what the lines of
# `--json` are indented with.
facts() {
  awk '
    function value(line) {
      sub(/^[^:]*: /, "", line)
      sub(/,$/, "", line)
      gsub(/"/, "", line)
      return line
    }
    /^  "(cluster|model|ranks|step_seconds|tokens_per_second|model_flops|memory_bytes|memory_limit_bytes|critical_class)":/ {
      key = $1
      gsub(/[":]/, "", key)
      print key "=" value($0)
      if (key == "critical_class") critical = value($0)
    }
    /^  "classes":/ { in_classes = 1; class = -1 }
    /^  "doubled":/ { in_classes = 0 }
    in_classes && /^    \{/ { ++class }
    in_classes && /^          "level":/ { level = value($0) }
    in_classes && /^          "sent_bytes":/ && class == critical {
      if (!(level in sent)) order[++levels] = level
      sent[level] += value($0)
    }
    END {
      for (i = 1; i <= levels; ++i) print "sent=" order[i] " " sent[order[i]]
    }' "$1"
}

fact() {
  sed --quiet "s/^$2=//p" "$work/$1.facts"
}

bytes_text() {
  awk -v bytes="$1" 'BEGIN {
    split("B KiB MiB GiB TiB", unit)
    for (i = 1; bytes >= 1024 && i < 5; ++i) bytes /= 1024
    printf(i == 1 ? "%d %s" : bytes < 10 ? "%.2f %s" : bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, unit[i])
  }'
}

grouped() {
  awk -v number="$1" 'BEGIN {
    text = sprintf("%.0f", number)
    while (match(text, /^[0-9][0-9][0-9][0-9]/)) {
      at = length(text) % 3 == 0 ? 3 : length(text) % 3
      done = done substr(text, 1, at) ","
      text = substr(text, at + 1)
    }
    print done text
  }'
}

seconds_text() {
  printf '%.4g s' "$1"
}

percent_text() {
  awk -v a="$1" -v b="$2" 'BEGIN { printf "%+.1f %%", 100 * (b / a - 1) }'
}

memory_text() {
  local needed limit
  needed=$(fact "$1" memory_bytes)
  limit=$(fact "$1" memory_limit_bytes)
  printf '%s%s' "$(bytes_text "$needed")" "$( ((limit == 0 || needed <= limit)) || echo ', does not fit')"
}

sent_text() {
  local level bytes text=""
  while read -r level bytes; do
    text+="${text:+, }$level $(bytes_text "$bytes")"
  done < <(fact "$1" sent)
  echo "${text:-nothing}"
}

# The lines of the head that are written here.
head_lines() {
  local name=$1 limit
  limit=$(fact "$name" memory_limit_bytes)
  echo "# Predicted by \`tessera simulate configs/recipes/$name.toml$(with_of "$name")\` (written by bench/recipes.sh):"
  echo "#   step $(seconds_text "$(fact "$name" step_seconds)"), $(grouped "$(fact "$name" tokens_per_second)") tokens/s, $(awk -v flops="$(fact "$name" model_flops)" 'BEGIN { printf "%.4g", flops / 1e12 }') TFLOP/s a device"
  echo "#   memory $(bytes_text "$(fact "$name" memory_bytes)")$( ((limit == 0)) || echo " of $(bytes_text "$limit")") a rank"
  echo "#   a rank sends in a step: $(sent_text "$name")"
}

# with_head FILE: the run file with these lines in place of those that it has.
with_head() {
  head_lines "$1" >"$work/head"
  awk -v head="$work/head" '
    /^# Predicted by / {
      while ((getline line < head) > 0) print line
      inside = 1
      ++found
      next
    }
    inside && /^#   / { next }
    { inside = 0; print }
    END { if (found != 1) exit 1 }' "configs/recipes/$1.toml" ||
    fail "configs/recipes/$1.toml: expected one line that begins with \"# Predicted by\""
}

index_row() {
  local name=$1
  printf '| [%s](%s.md) | %s %s | %s | %s | %s | %s |\n' "$name" "$name" "$(grouped "$(fact "$name" ranks)")" \
    "$(fact "$name" cluster)" "$(seconds_text "$(fact "$name" step_seconds)")" \
    "$(grouped "$(fact "$name" tokens_per_second)")" "$(memory_text "$name")" "$(sent_text "$name")"
}

with_row() {
  index_row "$1" >"$work/row"
  awk -v name="$1" -v row="$work/row" '
    index($0, "| [" name "](") == 1 { getline < row; ++found }
    { print }
    END { if (found != 1) exit 1 }' "$2" || fail "docs/recipes/index.md: expected one row of $1"
}

# What takes longer or less long in B, by `tessera compare`: the largest differences.
causes_text() {
  "$TESSERA" compare "$work/$1.json" "$work/$2.json" --rows=3 | awk '
    /^by cause/ { inside = 1; next }
    !inside || /^  the step / || /^  [0-9]+ more row/ { next }
    {
      difference = $(NF - 2)
      for (i = NF - 4; i > 0 && $i == ""; --i);
      what = $1
      for (i = 2; i <= NF - 5; ++i) what = what " " $i
      size = difference < 0 ? -difference : difference
      if (size == 0) next
      printf "%s%s %s s", text++ ? ", " : "", what, difference
    }'
}

# The tables of a page.
changes_table() {
  local name=$1 number=0 what arguments this
  echo '| change | step | | tokens/s | memory | because of |'
  echo '|---|---|---|---|---|---|'
  echo "| none | $(seconds_text "$(fact "$name" step_seconds)") | | $(grouped "$(fact "$name" tokens_per_second)") | $(memory_text "$name") | |"
  while IFS=$'\t' read -r what arguments; do
    number=$((number + 1))
    this=$name.change.$number
    echo "| $what: \`$arguments\` | $(seconds_text "$(fact "$this" step_seconds)") | $(percent_text "$(fact "$name" step_seconds)" "$(fact "$this" step_seconds)") | $(grouped "$(fact "$this" tokens_per_second)") | $(memory_text "$this") | $(causes_text "$name" "$this") |"
  done < <(lines_of "$name" change)
}

rungs_table() {
  local name=$1 number=0 what arguments this before=""
  echo '| rung | tokens/s a device | step | | memory | because of |'
  echo '|---|---|---|---|---|---|'
  while IFS=$'\t' read -r what arguments; do
    number=$((number + 1))
    this=$name.rung.$number
    echo "| $what: \`$arguments\` | $(grouped "$(awk -v all="$(fact "$this" tokens_per_second)" -v ranks="$(fact "$this" ranks)" 'BEGIN { print all / ranks }')") | $(seconds_text "$(fact "$this" step_seconds)") | ${before:+$(percent_text "$(fact "$before" step_seconds)" "$(fact "$this" step_seconds)")} | $(memory_text "$this") | ${before:+$(causes_text "$before" "$this")} |"
    before=$this
  done < <(lines_of "$name" rung)
}

# with_tables NAME: its page with the tables of now between their marks.
with_tables() {
  local name=$1
  changes_table "$name" >"$work/changes"
  rungs_table "$name" >"$work/rungs"
  awk -v work="$work" '
    /^<!-- end -->$/ { inside = 0 }
    !inside { print }
    /^<!-- (changes|rungs) -->$/ {
      file = work "/" $2
      print ""
      while ((getline line < file) > 0) print line
      print ""
      inside = 1
    }' "docs/recipes/$name.md"
}

list_jobs >"$work/jobs"
# shellcheck disable=SC2016
xargs --arg-file="$work/jobs" --delimiter='\n' --max-args=1 --max-procs="$(nproc)" \
  bash -c 'simulate_one "$1"' bash || fail "not all of it could be simulated"
for file in "$work"/*.json; do
  facts "$file" >"${file%.json}.facts"
done

mkdir -p "$work/new"
cp docs/recipes/index.md "$work/new/index.md"
changed=0
# put FILE: the text of the standard input is what FILE says now.
put() {
  cat >"$work/now"
  if ! diff --unified "$1" "$work/now" >"$work/difference"; then
    changed=$((changed + 1))
    if [[ $check == yes ]]; then
      cat "$work/difference"
    else
      cat "$work/now" >"$1"
      echo "written: $1"
    fi
  fi
}
for name in "${names[@]}"; do
  with_head "$name" >"$work/text"
  put "configs/recipes/$name.toml" <"$work/text"
  with_row "$name" "$work/new/index.md" >"$work/text"
  cp "$work/text" "$work/new/index.md"
  if [[ $steps == no ]]; then
    with_tables "$name" >"$work/text"
    put "docs/recipes/$name.md" <"$work/text"
  fi
done
put docs/recipes/index.md <"$work/new/index.md"
if [[ $check == yes && $changed -gt 0 ]]; then
  fail "$changed files do not say what the simulator says now; bench/recipes.sh writes them"
fi
