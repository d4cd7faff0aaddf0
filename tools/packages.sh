# shellcheck shell=bash
# Sourced by ./x from the repository's root: which packages are missing, and installing them.

# Prints the packages of the given groups of packages.txt.
packages_of() {
  awk -v groups=" $* " '/^[a-z]/ && index(groups, " " $1 " ") { print $2 }' packages.txt
}

is_debian() {
  grep --quiet '^ID=debian$' /etc/os-release 2>/dev/null && command -v dpkg-query >/dev/null
}

# Prints those of the given packages that are not installed.
missing_packages() {
  comm -23 <(printf '%s\n' "$@" | sort) <(
    dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
      awk '$1 == "installed" { print $2 }' | sort
  )
}

# Runs a command as root. Where sudo would have to ask and nobody can answer, it fails.
as_root() {
  if [[ $(id --user) == 0 ]]; then
    "$@"
  elif [[ -t 0 ]]; then
    sudo "$@"
  else
    sudo --non-interactive "$@"
  fi
}

can_become_root() {
  [[ $(id --user) == 0 ]] || { command -v sudo >/dev/null && as_root true 2>/dev/null; }
}

apt_install() {
  local -a apt=(env DEBIAN_FRONTEND=noninteractive apt-get --option DPkg::Lock::Timeout=300
    --option Dpkg::Use-Pty=0)
  echo "x: installing: $*"
  # A source that cannot be reached may not be the one that is needed: the install decides.
  as_root "${apt[@]}" update --quiet --quiet || echo "x: apt-get update failed; going on" >&2
  as_root "${apt[@]}" install --yes --quiet --quiet --no-install-recommends "$@"
}

has_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | awk 'NR == 1 { print $3 }')
  [[ -n $version ]] && printf '3.25\n%s\n' "$version" | sort --check=quiet --version-sort
}

# Ends the script where not even a configuration can start; CMake names the missing libraries.
require_tools() {
  local -a missing=()
  has_cmake || missing+=("cmake 3.25 or newer")
  command -v "${CXX:-c++}" >/dev/null || missing+=("a C++20 compiler (CXX=${CXX:-c++})")
  command -v ninja >/dev/null || command -v make >/dev/null || missing+=("ninja or make")
  if ((${#missing[@]})); then
    printf 'x: not found: %s\n' "${missing[@]}" >&2
    exit 1
  fi
}

# ensure_packages GROUP...: installs what is missing of the groups, or says what is and goes on.
# A machine that has everything needs neither network nor root.
ensure_packages() {
  local -a packages missing=()
  mapfile -t packages < <(packages_of "$@")
  if is_debian; then
    mapfile -t missing < <(missing_packages "${packages[@]}")
  fi
  if ((${#missing[@]})); then
    if [[ ${TESSERA_INSTALL:-yes} != no ]] && can_become_root; then
      apt_install "${missing[@]}"
    else
      echo "x: missing, and not installed for want of root or by TESSERA_INSTALL=no:" \
        "${missing[*]}. Going on with what is here." >&2
    fi
  fi
  require_tools
}
