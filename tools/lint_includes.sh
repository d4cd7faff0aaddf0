#!/usr/bin/env bash
# Checks what no compiler checks: that a file includes only the floors that src/tessera/floors.txt
# allows it, that other people's headers stay inside the folder that wraps them, and that no file
# names a path of the machine it was written on. Prints FILE:LINE: reason for each finding.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Headers that may include a third-party header: the place that wraps it.
wrappers=$(cat <<'TABLE'
src/tessera/base/format\.h      fmt/       the one name of the formatting library
src/tessera/.*/test_[a-z]*\.h   gtest/     tests share what they expect, ..
src/tessera/.*/test_[a-z]*\.h   gmock/     .. the words in which they do,
src/tessera/tokenizer/test_goldens\.h  nlohmann/  .. golden files,
src/tessera/base/test_delays\.h  sched.h  .. and how they hold threads up,
src/tessera/base/test_delays\.h  unistd.h  which are named by their ids
src/tessera/checkpoint/file_size_limit\.h  sys/resource.h  tests share a disk that is full
src/tessera/base/json\.h        nlohmann/  readers of JSON files of others share what refuses them
src/tessera/base/toml\.h        toml++/    what readers of TOML share names its nodes
src/tessera/backend/cpu/.*      oneapi/    oneDNN is wrapped by the CPU backend
src/tessera/backend/cpu/.*      omp.h      and so is OpenMP
src/tessera/backend/cuda/.*     cublasLt.h  cuBLASLt and the CUDA runtime are wrapped by the plugin ..
src/tessera/backend/cuda/.*     cudnn_graph.h  and so is the graph API of cuDNN
src/tessera/backend/cuda/.*     cuda_runtime_api.h  .. for GPUs
src/tessera/comm/nccl/.*        nccl.h     NCCL, and what it needs of CUDA, by another ..
src/tessera/comm/nccl/.*        cuda_runtime_api.h  .. for runs on several of them
src/tessera/comm/mpi/.*         mpi.h      MPI is wrapped by its plugins
src/tessera/tokenizer/json_node\.h  nlohmann/  readers of tokenizers share what names JSON values
src/tessera/.*-inl\.h           hwy/       Highway compiles these once per instruction set
TABLE
)

check_includes() {
  export wrappers
  # shellcheck disable=SC2016 # the dollars are the fields of awk
  tools/list_sources.sh | xargs awk '
    function report(reason) {
      printf "%s:%d: %s\n", FILENAME, FNR, reason
      failed = 1
    }
    function exists(path,   line, status) {
      if (!(path in known)) {
        status = (getline line <path)
        close(path)
        known[path] = status >= 0
      }
      return known[path]
    }
    # Whether path starts with the second field of a row whose first field matches file.
    function listed(rows, count, file, path,   i, field) {
      for (i = 1; i <= count; i++) {
        split(rows[i], field, " ")
        if (file ~ "^" field[1] "$" && index(path, field[2]) == 1) {
          return 1
        }
      }
      return 0
    }
    # The floor of a file below src/tessera/.
    function floor_of(file,   i, field) {
      for (i = 1; i <= num_belongs; i++) {
        split(belongs[i], field, " ")
        if (file ~ "^" field[2] "$") {
          return field[1]
        }
      }
      return substr(file, 1, index(file, "/") - 1)
    }
    function check_floor(path,   file, from, to) {
      file = substr(FILENAME, length("src/tessera/") + 1)
      from = floor_of(file)
      to = floor_of(path)
      if (!(from in rank)) {
        report("the folder " from " has no floor: add it to src/tessera/floors.txt")
      } else if (!(to in rank)) {
        report("no floor is called " to)
      } else if (to != from && (from in only) && index("," only[from] ",", "," to ",") == 0) {
        report(from " may not include " to ": it may include " only[from])
      } else if (rank[to] > rank[from] && !listed(also, num_also, file, path)) {
        report(from " may not include " to ", which is a floor above it")
      }
    }
    function read_floors(file,   line, field) {
      while ((getline line <file) > 0) {
        split(line, field, " ")
        if (field[1] == "floor") {
          rank[field[2]] = ++num_floors
        } else if (field[1] == "beside") {
          rank[field[2]] = rank[field[3]]
        } else if (field[1] == "belongs") {
          belongs[++num_belongs] = field[2] " " field[3]
        } else if (field[1] == "also") {
          also[++num_also] = field[2] " " field[3]
        } else if (field[1] == "only") {
          only[field[2]] = field[3]
        } else if (line !~ /^(#.*)?$/) {
          print file ": cannot read this line: " line
          failed = 1
        }
      }
      close(file)
      rank["tests"] = ++num_floors
    }
    BEGIN {
      read_floors("src/tessera/floors.txt")
      num_wrappers = split(ENVIRON["wrappers"], wrapper, "\n")
    }
    FNR == 1 {
      is_header = FILENAME ~ /\.h$/
      in_module = FILENAME ~ /^src\/tessera\//
      guarded = !is_header || FILENAME ~ /-inl\.h$/  # Highway includes those several times
    }
    # Only comments and blank lines may stand before the guard.
    !guarded && !/^[ \t]*(\/\/.*)?$/ {
      if ($0 != "#pragma once") {
        report("a header starts with #pragma once")
      }
      guarded = 1
    }
    /^#[ \t]*include[ \t]*"/ {
      split($0, quoted, "\"")
      if (quoted[2] !~ /^tessera\// && in_module) {
        report("own headers are included from the root: \"tessera/...\"")
      } else if (!exists("src/" quoted[2]) && !exists(quoted[2])) {
        report("no file src/" quoted[2])
      } else if (in_module) {
        check_floor(substr(quoted[2], length("tessera/") + 1))
      }
    }
    # The standard library is what has neither folder nor ending.
    is_header && in_module && /^#[ \t]*include[ \t]*</ {
      split($0, angled, "[<>]")
      if (angled[2] ~ /[.\/]/ && !listed(wrapper, num_wrappers, FILENAME, angled[2])) {
        report("<" angled[2] "> belongs in a .cc file, or in the folder that wraps it")
      }
    }
    END { exit failed }'
}

check_paths() {
  local found
  found=$(grep --recursive --line-number --binary-files=without-match --extended-regexp \
    --exclude-dir=.git --exclude-dir='build*' --exclude-dir=runs --exclude-dir=.cache \
    '(^|[^A-Za-z0-9_.$}])/(work|home|root|Users)/[A-Za-z0-9]' . || true)
  [[ -z $found ]] || {
    echo "$found"
    echo "a file names a path of one machine"
    return 1
  }
}

status=0
check_includes || status=1
check_paths || status=1
exit $status
