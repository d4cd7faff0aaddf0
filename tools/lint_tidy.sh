#!/usr/bin/env bash
# Runs clang-tidy on every source file of a build, in parallel. A file that was clean is not checked
# again until it, a header of ours that it includes, its flags or the rules change.
#
# usage: tools/lint_tidy.sh BUILD_DIR        BUILD_DIR has compile_commands.json
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$(pwd -P)
clean=${XDG_CACHE_HOME:-$HOME/.cache}/tessera/clang-tidy # an empty file for each clean input

# Prints FILE, a tab, and one line of text that changes whenever an input of FILE's check does: the
# compile command and the hashes of the file and of all our headers below it.
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
      for (file in commands) {
        if (file in hash) {
          split("", seen)
          identity = commands[file]
          visit(file)
          print file "\t" identity
        }
      }
    }' "$build/compile_commands.json" -
}

# check KEY FILE
check() {
  local output
  if output=$(clang-tidy-19 --quiet -p "$build" "$2" 2>&1); then
    touch "$clean/$1"
  else
    grep --invert-match ' warnings generated\.$' <<<"$output"
    return 1
  fi
}
export -f check
export build clean

mkdir -p "$clean"
find "$clean" -type f -mtime +30 -delete
rules=$(clang-tidy-19 --version; cat .clang-tidy)
declare -i total=0
declare -a todo=()
while IFS=$'\t' read -r file identity; do
  key=$(printf '%s' "$rules $identity" | sha256sum | cut --delimiter ' ' --fields 1)
  total+=1
  [[ -e $clean/$key ]] || todo+=("$key" "$file")
done < <(tools/list_sources.sh | xargs sha256sum | inputs | sort)

echo "clang-tidy: $((${#todo[@]} / 2)) of $total files changed since they were clean"
if ((${#todo[@]})); then
  printf '%s\n' "${todo[@]}" | xargs --max-args=2 --max-procs="$(nproc)" bash -c 'check "$@"' check
fi
