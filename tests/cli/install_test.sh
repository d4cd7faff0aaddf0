#!/usr/bin/env bash
# The installed tree works wherever it is moved: its program runs, and another project builds
# against it with find_package(Tessera).
#
# usage: install_test.sh BUILD_DIR VERSION     BUILD_DIR is built; VERSION is what it must print
set -euo pipefail

build=$1
version=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "install_test: $*" >&2
  exit 1
}

# cached NAME: the value of a variable in the build's CMake cache.
cached() {
  sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"
}

cmake --install "$build" --prefix "$work/installed" >"$work/install.log" || fail "cmake --install"
mv "$work/installed" "$work/moved"

for path in bin/tessera share/tessera/configs/runs include/tessera/base/error.h \
  share/man/man1/tessera-tokenizer-train.1 share/man/man5/tessera-run.5 \
  share/bash-completion/completions/tessera share/zsh/site-functions/_tessera \
  share/fish/vendor_completions.d/tessera.fish; do
  [[ -s $work/moved/$path ]] || fail "the tree lacks $path"
done

# No variable of the caller may help the program to find its library.
printed=$(env -u LD_LIBRARY_PATH "$work/moved/bin/tessera" --version)
[[ $printed == *"$version"* ]] || fail "--version must say $version, but prints: $printed"
library=$(env -u LD_LIBRARY_PATH ldd "$work/moved/bin/tessera" | awk '/libtessera/ { print $3 }')
[[ $(realpath "$library") == "$work"/moved/* ]] || fail "the program loads $library"
! grep --recursive --fixed-strings "$build" "$work/moved/include" "$work/moved/lib/cmake" ||
  fail "the installed headers or CMake files name the build folder"

sanitize=$(cached TESSERA_SANITIZE)
# build_project SOURCE NAME [OPTION...]: builds another project against the tree, in $work/NAME.
build_project() {
  cmake -S "$1" -B "$work/$2" -DCMAKE_PREFIX_PATH="$work/moved" -G "$(cached CMAKE_GENERATOR)" \
    -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" \
    -DCMAKE_CXX_FLAGS="${sanitize:+-fsanitize=$sanitize}" "${@:3}" >"$work/$2.log" ||
    fail "$2: find_package(Tessera)"
  cmake --build "$work/$2" || fail "$2 does not build against the tree"
}

build_project "$here/consumer" consumer -DEXPECTED_VERSION="$version"
printed=$("$work/consumer/consumer")
[[ $printed == "1.50 KiB" ]] || fail "the project prints: $printed"

# So does the build folder, without an installation.
build_project "$here/consumer" consumer_of_build -DEXPECTED_VERSION="$version" \
  -DCMAKE_PREFIX_PATH= -DTessera_DIR="$build"
printed=$("$work/consumer_of_build/consumer")
[[ $printed == "1.50 KiB" ]] || fail "the project on the build folder prints: $printed"

# The examples need public headers only.
build_project "$here/../../examples" examples
printed=$("$work/examples/custom_model" 2>&1) && fail "custom_model needs no arguments"
[[ $printed == "error: usage: "* ]] || fail "custom_model prints: $printed"
