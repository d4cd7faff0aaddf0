#!/usr/bin/env bash
# Writes a tree that runs wherever it is moved, on machines without the libraries that Tessera is
# built against: bin/, lib/, and tests/ and bench/ with the programs for GPUs that were built.
#
# usage: tools/bundle.sh BUILD_DIR FOLDER      FOLDER is replaced
set -euo pipefail

build=$1
folder=$2
declare -ri most=60000000

rm -rf "$folder"
for component in bundle bundle_tests bundle_bench; do
  cmake --install "$build" --component "$component" --prefix "$(realpath -m "$folder")" --strip \
    >/dev/null
done
# CMake strips what it built; a library from elsewhere may still hold what debuggers read.
find "$folder" -type f -name 'lib*.so*' -exec chmod u+w {} + -exec strip --strip-unneeded {} +

declare -i bytes
bytes=$(find "$folder" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
echo "bundle: $folder, $((bytes / 1000000)) MB"
[[ -e $(find "$folder" -name libtessera_cuda.so) ]] ||
  echo "bundle: without the plugin for GPUs: the build found no CUDA toolkit"
if ((bytes > most)); then
  echo "bundle: $bytes bytes, expected at most $most" >&2
  exit 1
fi
