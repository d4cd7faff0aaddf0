# shellcheck shell=bash
# Sourced by ./x from the repository's root: configuring, building, and the quickstart's corpus.

# configure PRESET: quick when nothing changed, and it finds libraries that were installed since.
configure() {
  local -a generator=()
  command -v ninja >/dev/null || generator=(-G "Unix Makefiles")
  cmake --preset "$1" "${generator[@]}" >/dev/null
}

# build_targets PRESET TARGET...
build_targets() {
  local preset=$1
  shift
  configure "$preset"
  cmake --build --preset "$preset" --parallel "$(nproc)" --target "$@"
}

# print_build_times FOLDER: what Ninja's log says of the newest compilation of each file.
print_build_times() {
  if [[ ! -e $1/.ninja_log ]]; then
    echo "no times: $1 was not built by Ninja"
    return
  fi
  # The log also has what no target makes any more.
  (cd "$1" && awk '
    function exists(file,   line, status) {
      status = (getline line <file)
      close(file)
      return status >= 0
    }
    !/^#/ && $4 ~ /\.(o|gch)$/ {
      seconds[$4] = ($2 - $1) / 1000
    }
    END {
      for (file in seconds) {
        if (!exists(file)) {
          continue
        }
        total += seconds[file]
        split(file, part, "/CMakeFiles/")
        sub(/^src\/tessera\//, "", part[1])
        of_folder[part[1]] += seconds[file]
        file_name = file
        sub(/\/CMakeFiles\/[^\/]*\.dir/, "", file_name)
        printf "0 %7.1f s  %s\n", seconds[file], file_name
      }
      for (folder in of_folder) {
        printf "1 %7.1f s  %s/\n", of_folder[folder], folder
      }
      printf "2 %7.1f s  compiling in all\n", total
    }' .ninja_log) | sort --key=1,1n --key=2,2nr | awk '
    $1 != group {
      group = $1
      count = 0
    }
    ++count <= 20 {
      print substr($0, 3)
    }'
}

# The quickstart trains on CMake's manual, which every machine that builds Tessera has. It is
# written once for each version of CMake, under another name first so that it is never half there.
write_quickstart_corpus() {
  local folder=build/quickstart version
  version=$(cmake --version | head -n 1)
  mkdir -p "$folder"
  touch "$folder/cmake-version.txt"
  if [[ -f $folder/cmake-help.txt && $(<"$folder/cmake-version.txt") == "$version" ]]; then
    return
  fi
  cmake --help-full >"$folder/cmake-help.txt.part"
  mv "$folder/cmake-help.txt.part" "$folder/cmake-help.txt"
  echo "$version" >"$folder/cmake-version.txt"
}
