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
