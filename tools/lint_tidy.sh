#!/usr/bin/env bash
# Checks every source file and header by the rules of .clang-tidy, in parallel. A file that was clean
# is not checked again until it, a header of ours that it includes, its flags or the rules change.
#
# usage: tools/lint_tidy.sh quick|deep BUILD_DIR [--product]
#
# BUILD_DIR has compile_commands.json; --product leaves out what only tests are built of, and headers
# beside a source of their name, for a check in half the time.
#
# quick  clangd's run of the rules, which looks at the nodes of the file alone and so takes a fifth of
#        the time that clang-tidy spends, most of it inside the headers of libraries
# deep   what clangd leaves out, by clang-tidy: the path-sensitive checks
set -euo pipefail
mode=$1
build=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$(pwd -P)
scope=${3:-all}
clean=${XDG_CACHE_HOME:-$HOME/.cache}/tessera/lint-$mode # an empty file for each clean input
deep_checks='-*,clang-analyzer-*,bugprone-use-after-move,bugprone-unchecked-optional-access'

# Prints FILE, a tab, and one line of text that changes whenever an input of FILE's check does: the
# hashes of the file and of all our headers below it, and the compile command of a source file.
inputs() {
  awk -v root="$root/" -v build="$build" '
    function visit(file,   i) {
      if (file in seen) {
        return
      }
      seen[file] = 1
      identity = identity " " hash[file]
      for (i = 1; i <= num_includes[file]; i++) {
        visit(include[file, i])
      }
    }
    FILENAME == "-" {
      hash[$2] = $1
      ARGV[ARGC++] = $2
      next
    }
    FILENAME ~ /compile_commands.json$/ {
      if ($1 == "\"command\":") {
        command = $0
      } else if ($1 == "\"file\":") {
        split($0, quoted, "\"")
        file = quoted[4]
        if (index(file, root) == 1) {
          file = substr(file, length(root) + 1)
          gsub(build, "", command)
          gsub(root, "", command)
          commands[file] = command
        }
      }
      next
    }
    /^#[ \t]*include[ \t]*"tessera\// {
      split($0, quoted, "\"")
      include[FILENAME, ++num_includes[FILENAME]] = "src/" quoted[2]
    }
    END {
      for (file in hash) {
        if (file in commands || file ~ /\.h$/) {
          split("", seen)
          identity = commands[file]
          visit(file)
          print file "\t" identity
        }
      }
    }' "$build/compile_commands.json" -
}

# tidy FILE CHECKS
tidy() {
  local output
  output=$(clang-tidy-19 --quiet --checks="$2" -p "$build" "$1" 2>&1) || {
    grep --invert-match ' warnings generated\.$' <<<"$output"
    return 1
  }
}

# Prints what is wrong with FILE, and fails if anything is.
quick() {
  # A file that includes itself, as Highway wants it, is too much for clangd; clang-tidy sees a
  # header from the files that include it.
  if grep --quiet HWY_TARGET_INCLUDE "$1"; then
    [[ $1 == *.h ]] || tidy "$1" '-clang-analyzer-*'
    return
  fi
  local output
  output=$(clangd-19 --check="$1" --compile-commands-dir="$build" --check-locations=0 \
    --log=error 2>&1) || {
    sed --quiet --regexp-extended "s|^E\[[^]]*\] \[([^]]*)\] Line ([0-9]+): (.*)|$1:\2: \3 [\1]|p" \
      <<<"$output" | grep . || echo "$1: clangd failed: $output"
    return 1
  }
}

deep() {
  [[ $1 == *.h ]] || tidy "$1" "$deep_checks" # a header is seen from the files that include it
}

# is_left_out FILE
is_left_out() {
  [[ $scope == --product ]] || return 1
  [[ $1 =~ ^tests/|/testing/|_(test|samples)\. || ($1 == *.h && -e ${1%.h}.cc) ]]
}

# check KEY FILE
check() {
  "$mode" "$2" && touch "$clean/$1"
}
export -f check quick deep tidy
export build clean deep_checks mode

mkdir -p "$clean"
find "$clean" -type f -mtime +30 -delete
rules=$(clang-tidy-19 --version; cat .clang-tidy .clangd)
declare -i total=0
declare -a todo=()
while IFS=$'\t' read -r file identity; do
  ! is_left_out "$file" || continue
  key=$(printf '%s' "$rules $identity" | sha256sum | cut --delimiter ' ' --fields 1)
  total+=1
  [[ -e $clean/$key ]] || todo+=("$key" "$file")
done < <(tools/list_sources.sh | xargs sha256sum | inputs | sort)

echo "$mode checks: $((${#todo[@]} / 2)) of $total files changed since they were clean"
if ((${#todo[@]})); then
  printf '%s\n' "${todo[@]}" | xargs --max-args=2 --max-procs="$(nproc)" bash -c 'check "$@"' check
fi
