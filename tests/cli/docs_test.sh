#!/usr/bin/env bash
# Holds the pages to the tree and to the program: every link leads somewhere, every command, option
# and key that a page shows exists, the worked example shows what is so, and no page is longer than
# its kind may be.
#
# usage: docs_test.sh TESSERA SOURCE_DIR
set -euo pipefail
tessera=$(realpath "$1")
cd "$2"

failures=0
report() {
  echo "$*"
  failures=$((failures + 1))
}

mapfile -t pages < <(find . -maxdepth 1 -name '*.md' | sort && find docs examples -name '*.md' | sort)

# The headings of a page as forges name them in links.
anchors() {
  sed --quiet 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' |
    sed 's/\[\([^]]*\)\]([^)]*)/\1/g; s/[^a-z0-9 _-]//g; s/ /-/g'
}

# A grep that finds nothing fails, and a page without links, keys or options is right: hence the
# `|| true` after what lists them.
check_links() {
  local page target file anchor
  for page in "${pages[@]}"; do
    while read -r target; do
      file=${target%%#*}
      anchor=""
      [[ $target != *'#'* ]] || anchor=${target#*#}
      [[ -z $file ]] && file=$page || file=$(dirname "$page")/$file
      if [[ ! -e $file ]]; then
        report "$page: no file for the link $target"
      elif [[ -n $anchor ]] && ! anchors "$file" | grep --quiet --line-regexp --fixed-strings -- "$anchor"; then
        report "$page: no heading for the link $target"
      fi
    done < <(awk '/^```/ { inside = !inside; next } !inside' "$page" | tr '\n' ' ' | grep --only-matching '\](\([^)]*\))' | sed 's/^](//; s/)$//' |
      grep --invert-match --extended-regexp '^[a-z]+:' || true)
  done
}

# check_words MOST PAGE...
check_words() {
  local most=$1 page words
  shift
  for page in "$@"; do
    words=$(wc -w <"$page")
    ((words <= most)) || report "$page: $words words, at most $most belong on such a page"
  done
}

check_keys() {
  local keys key page
  keys=$("$tessera" config | awk '
    /^\[/ { gsub(/[][# ]/, ""); section = $0 }
    /^(# )?[a-z_0-9]+ =/ { sub(/^# /, ""); print section "." $1 }')
  for page in "${pages[@]}"; do
    while read -r key; do
      grep --quiet --line-regexp --fixed-strings -- "${key#--}" <<<"$keys" ||
        report "$page: no key of a run file is called ${key#--}"
    # --section.key stands for any of them.
    done < <(grep --only-matching --extended-regexp -e '--[a-z_0-9]+\.[a-z_0-9]+' "$page" |
      grep --invert-match -e '--section.key' | sort --unique || true)
  done
}

# The lines of a page's blocks of code that call the program, each whole.
calls() {
  awk '
    /^```/ { inside = !inside; next }
    !inside { next }
    { line = line $0 }
    sub(/\\$/, "", line) { next }
    { if (line ~ /(^|[ \/])tessera [a-z]/) print line; line = "" }' "$1"
}

declare -A help_of
# find_help COMMAND: puts its help into help_of; fails where there is no such command.
find_help() {
  [[ -v help_of[$1] ]] && return
  local -a words
  read -ra words <<<"$1"
  # What is no command fails, and has no help of its own either.
  help_of[$1]=$("$tessera" "${words[@]}" --help 2>/dev/null || true)
  if [[ ${help_of[$1]} != *"Usage: tessera $1 "* ]]; then
    unset "help_of[$1]"
    return 1
  fi
}

check_calls() {
  local page line command rest option
  for page in "${pages[@]}"; do
    while read -r line; do
      rest=$(sed --regexp-extended 's/.*(^|[ \/])tessera //' <<<"$line")
      command=$(cut --delimiter ' ' --fields 1 <<<"$rest")
      case $command in
        data | tokenizer | checkpoint) command=$(cut --delimiter ' ' --fields 1,2 <<<"$rest") ;;
      esac
      if ! find_help "$command"; then
        report "$page: no command \"tessera $command\""
        continue
      fi
      while read -r option; do
        grep --quiet --extended-regexp -e "$option([ ,=]|\$)" <<<"${help_of[$command]}" ||
          report "$page: tessera $command has no option $option"
      done < <(grep --only-matching --extended-regexp -e '(^| )--?[a-z][a-z-]*([ =]|$)' <<<"${rest%%[|<>]*}" |
        tr --delete ' =' | sort --unique || true)
    done < <(calls "$page")
  done
}

# The lines of a page's blocks without a language, each whole and after the file that the page named
# last before it, by number and name of a pass. What depends on the processor is left out: numbers of
# buffers and events.
shown_lines() {
  awk '
    /^```/ {
      if (line != "") print file "\t" line
      line = ""
      inside = !inside
      plain = inside && $0 == "```"
      next
    }
    !inside {
      rest = $0
      while (match(rest, /([a-z]+\/)?[0-9][0-9]-[a-z_]+/)) {
        file = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
      }
      next
    }
    !plain { next }
    /^    / { line = line " " substr($0, 5); next }
    { if (line != "") print file "\t" line; line = $0 == "..." ? "" : $0 }' "$1" | without_numbers
}

without_numbers() {
  sed --regexp-extended 's/#[0-9]+/#/g; s/(wait|signal) [0-9]+/\1/g; s/^ +//'
}

# The worked example shows what its commands write.
check_dumps() {
  local page=docs/worked-example.md directory file line
  directory=$(mktemp -d)
  while read -r line; do
    (cd "$directory" && eval "${line/tessera/\"$tessera\"}" >/dev/null) || report "$page: fails: $line"
  done < <(calls "$page")
  while IFS=$'\t' read -r file line; do
    [[ $file == */* ]] || file=dump/$file
    if [[ ! -e $directory/$file.txt ]]; then
      report "$page: no file $file.txt"
    elif ! grep --quiet --line-regexp --fixed-strings -e "$line" <(without_numbers <"$directory/$file.txt"); then
      report "$page: $file.txt has no line $line"
    fi
  done < <(shown_lines "$page")
  # Every file is spoken of.
  for file in "$directory"/dump/[0-9]*.txt; do
    file=$(basename "$file" .txt)
    grep --quiet -e "$file" "$page" || report "$page: does not name $file"
  done
  rm -r "$directory"
}

check_links
check_keys
check_dumps
check_calls
check_words 900 README.md docs/guides/*.md docs/design/*.md
check_words 600 docs/floors/*.md
if ((failures > 0)); then
  echo "$failures findings"
  exit 1
fi
echo "${#pages[@]} pages: links, commands, options and keys are right"
