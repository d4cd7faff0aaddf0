#!/usr/bin/env bash
# Checks every source file and header by the rules of .clang-tidy, in parallel. Files that were
# clean are not checked again until one of those checked with them, a header of ours below these,
# their flags or the rules change.
#
# usage: tools/lint_tidy.sh quick|deep BUILD_DIR
#
# BUILD_DIR has compile_commands.json.
#
# quick  clangd's run of the rules, which looks at the nodes of the file alone and so takes a fifth
#        of the time that clang-tidy spends, most of it inside the headers of libraries. Four fifths
#        of what is left is reading headers, so files of equal flags are checked some at a time, as
#        one. Where that finds anything, they are checked as two, and so on down to each alone.
# deep   what that leaves out, by clang-tidy on each source: the path-sensitive checks, definitions
#        in headers, unused names, and whether a source includes what it uses
set -euo pipefail
mode=$1
build=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$(pwd -P)
clean=${XDG_CACHE_HOME:-$HOME/.cache}/tessera/lint-$mode # an empty file for each clean input
deep_checks='-*,clang-analyzer-*,bugprone-use-after-move,bugprone-unchecked-optional-access'
deep_checks+=',misc-definitions-in-headers,misc-unused-using-decls'
files_at_once=16

# Prints FILE, a tab, its flags without names of files, a tab, and one line of text that changes
# whenever an input of FILE's check does: the hashes of the file and of all our headers below it.
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
          sub(/ -o .*/, "", command)
          gsub(build, "", command)
          gsub(root, "", command)
          commands[substr(file, length(root) + 1)] = command
        }
      }
      next
    }
    /^#[ \t]*include[ \t]*"/ {
      split($0, quoted, "\"")
      prefix = quoted[2] ~ /^tessera\// ? "src/" : ""
      include[FILENAME, ++num_includes[FILENAME]] = prefix quoted[2]
    }
    END {
      for (file in hash) {
        if (file in commands || file ~ /\.h$/) {
          split("", seen)
          identity = ""
          visit(file)
          print file "\t" commands[file] "\t" identity
        }
      }
    }' "$build/compile_commands.json" -
}

# Prints the files of a check, with spaces between, a tab, and their inputs, from those of inputs().
# Some files of a room with equal flags, and headers of their folders, are checked together: headers
# first, each after those that it includes.
groups() {
  awk -F '\t' -v mode="$mode" -v size="$files_at_once" '
    # Headers of kernels read otherwise without their compiler, Highway has a file include itself, a
    # program has one main(), and samples of ops, which use their unnamed namespaces from outside,
    # would find those of others.
    function is_alone(file,   line, found, above) {
      found = mode == "deep" || file ~ /_cuda\.h$|\/cuda\/|_samples\.cc$/
      for (above = folder(file); above ~ /\//; above = folder(above)) {
        found = found || (getline line < (above "/.clang-tidy")) > 0
        close(above "/.clang-tidy")
      }
      while (!found && (getline line < file) > 0) {
        found = line ~ /HWY_TARGET_INCLUDE|^int main\(/
      }
      close(file)
      return found
    }
    # src/tessera/FLOOR and the like
    function room(file,   part) {
      split(file, part, "/")
      return part[1] "/" part[2] "/" part[3]
    }
    function folder(file) {
      sub(/\/[^\/]*$/, "", file)
      return file
    }
    {
      file[NR] = $1
      flags[NR] = $2
      identity[NR] = $3
      depth[NR] = split($3, below, " ")
      if ($2 != "" && !(folder($1) in flags_in)) {
        flags_in[folder($1)] = $2
      }
    }
    END {
      for (i = 1; i <= NR; i++) {
        where = flags[i] == "" ? flags_in[folder(file[i])] : flags[i]
        if (where == "" || is_alone(file[i])) {
          print file[i] "\t" flags[i] identity[i]
          continue
        }
        where = where "\t" room(folder(file[i]))
        batch = where "\t" int(num_files[where] / size)
        num_files[where] += 1
        members[batch] = members[batch] " " i
      }
      for (batch in members) {
        count = split(members[batch], member, " ")
        # Sources keep their order after the headers, which go by how much is below them.
        for (i = 2; i <= count; i++) {
          moving = member[i]
          if (file[moving] !~ /\.h$/) {
            continue
          }
          for (j = i - 1; j >= 1; j--) {
            if (file[member[j]] ~ /\.h$/ && depth[member[j]] <= depth[moving]) {
              break
            }
            member[j + 1] = member[j]
          }
          member[j + 1] = moving
        }
        names = ""
        inputs = ""
        for (i = 1; i <= count; i++) {
          names = names (i > 1 ? " " : "") file[member[i]]
          inputs = inputs flags[member[i]] identity[member[i]]
        }
        print names "\t" inputs
      }
    }'
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

# Prints the text of a source that holds all FILEs: each one's unnamed namespace has a name inside,
# and a header is not included again.
joined() {
  local file
  local -i part=0
  for file; do
    part+=1
    sed --expression '/^#pragma once$/d' \
      --expression "s/^namespace {\$/namespace { inline namespace part_$part {/" \
      --expression 's|^}  // namespace$|}}|' "$file"
  done
}

# quick_joined FILE FILE...: whether they, of which one is a source, are clean as one.
quick_joined() {
  local directory code=0 file first=""
  directory=$(mktemp --directory) || return 1
  cp .clangd .clang-tidy "$directory"
  joined "$@" >"$directory/joined.cc"
  local flags="-I$directory/headers"
  for file; do
    flags+=" -iquote $root/$(dirname "$file")"
    if [[ $file == *.h ]]; then
      mkdir -p "$directory/headers/$(dirname "${file#src/}")"
      touch "$directory/headers/${file#src/}"
    else
      first=${first:-$file}
    fi
  done
  awk -v file="\"$root/$first\"" -v joined="$directory/joined.cc" -v flags="$flags" '
    $1 == "\"directory\":" { directory = $0 }
    $1 == "\"command\":" { command = $0 }
    $1 == "\"file\":" && index($0, file) {
      sub(/ -o .*/, " -c " joined "\",", command)
      sub(/\+\+ /, "++ " flags " ", command)
      print "[{" directory command "\"file\": \"" joined "\"}]"
      exit
    }' "$build/compile_commands.json" >"$directory/compile_commands.json"
  clangd-19 --check="$directory/joined.cc" --compile-commands-dir="$directory" \
    --check-locations=0 --log=error >/dev/null 2>&1 || code=1
  rm -r "$directory"
  return "$code"
}

deep() {
  [[ $1 == *.h ]] || tidy "$1" "$deep_checks" # a header is seen from the files that include it
}

# check_files FILE...: prints what is wrong with them, and fails if anything is.
check_files() {
  if (($# == 1)); then
    "$mode" "$1"
    return
  fi
  if [[ " $*" == *.cc* ]] && quick_joined "$@"; then
    return
  fi
  local -a odd=() even=()
  local -i number=0 code=0
  for file; do
    number+=1
    if ((number % 2)); then odd+=("$file"); else even+=("$file"); fi
  done
  check_files "${odd[@]}" || code=1
  check_files "${even[@]}" || code=1
  return "$code"
}

# check KEY FILES
check() {
  local -a files
  read -r -a files <<<"$2"
  check_files "${files[@]}" && touch "$clean/$1"
}
export -f check check_files quick deep tidy joined quick_joined
export build clean deep_checks mode root

mkdir -p "$clean"
find "$clean" -type f -mtime +30 -delete
rules=$(clang-tidy-19 --version; cat .clangd; git ls-files '*.clang-tidy' | sort | xargs cat)
declare -i total=0
declare -a todo=()
while IFS=$'\t' read -r files identity; do
  key=$(printf '%s' "$rules $files $identity" | sha256sum | cut --delimiter ' ' --fields 1)
  total+=1
  [[ -e $clean/$key ]] || todo+=("$key" "$files")
done < <(tools/list_sources.sh | xargs sha256sum | inputs | sort | groups)

echo "$mode checks: $((${#todo[@]} / 2)) of $total groups of files changed since they were clean"
if ((${#todo[@]})); then
  printf '%s\n' "${todo[@]}" | tr '\n' '\0' |
    xargs --null --max-args=2 --max-procs="$(nproc)" bash -c 'check "$@"' check
fi
