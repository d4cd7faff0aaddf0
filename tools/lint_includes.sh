#!/usr/bin/env bash
# Checks what no compiler checks: that a module includes only the floors below it, that other
# people's headers stay inside the folder that wraps them, and that no file names a path of the
# machine it was written on. Prints FILE:LINE: reason for each finding.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The modules from the ground floor up: each may include itself and those before it.
floors="base ir mesh ops autodiff cost program passes comm backend runtime simulate planner models
  optim data tokenizer checkpoint metrics report config train cli"

# Exceptions: FILE (a regular expression below src/tessera/), then what it may include besides, then
# why. Where that is `only:` and a list, FILE may include nothing but the modules of the list.
exceptions=$(cat <<'TABLE'
comm/fold\.cc       backend/cpu/            folds run on the vectors of the CPU kernels
ops/.*_cpu\.cc      backend/cpu/            a CPU kernel sits with its op but belongs to the backend
ops/.*_cpu\.cc      comm/                   the kernel of a collective runs on communicators ..
ops/.*_run\.cc      comm/                   .. with one text for every backend ..
ops/.*_problem\.h   comm/                   .. or what the kernels of several share
ops/.*_simd\.cc     backend/cpu/            the same: what is compiled once per instruction set
ops/.*-inl\.h       backend/cpu/            the same: what such parts share
ops/.*_cuda\.(cu|h) backend/cuda/           the same for CUDA, and what such files of an op share ..
ops/.*_cuda\.cu     backend/cpu/            .. which finds elements as CPU kernels do ..
ops/.*_cuda\.(cu|h) comm/                   .. and talks to other ranks
comm/nccl/stand_in\.cc  backend/cuda/       what stands for NCCL runs on what stands for CUDA
comm/quantize\.cc   backend/cpu/            codes of the wire are made by vector code as kernels are
ops/testing/.*      backend/cpu/            the checks of every op run its kernels ..
ops/testing/.*      backend/backend.h       .. or those of another backend ..
ops/testing/.*      comm/                   .. on ranks where they talk
ops/.*_test\.cc     backend/cpu/            a test of a CPU kernel runs it
ir/ir_test\.cc      ops/                    graphs in tests are made of real ops
program/.*_test\.cc passes/                 the planner's plans are what the verifier must accept
passes/.*_test\.cc  models/                 passes are tested on a real model ..
passes/.*_test\.cc  train/                  .. with its loss
passes/test_graphs\.h  models/              the same: what such tests share
passes/test_graphs\.h  train/               the same
passes/.*_test\.cc  backend/                what passes must keep is what a run computes ..
passes/.*_test\.cc  runtime/                .. so tests run it
runtime/.*_test\.cc models/                 the arena of a real model is what its plan says ..
runtime/.*_test\.cc train/                  .. with its loss
models/.*           only:base,ir,mesh,ops   a model is sequential code that knows no parallelism
TABLE
)

# Headers that may include a third-party header: the place that wraps it.
wrappers=$(cat <<'TABLE'
src/tessera/base/format\.h      fmt/       the one name of the formatting library
src/tessera/base/test_error\.h  gtest/     tests share what they expect of an Error
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
  export floors exceptions wrappers
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
    # Whether module `from` is held to a closed list that lacks `to`.
    function outside_closed_list(file, to,   i, field) {
      for (i = 1; i <= num_exceptions; i++) {
        split(exception[i], field, " ")
        if (file ~ "^" field[1] "$" && sub(/^only:/, ",", field[2])) {
          return index(field[2] ",", "," to ",") == 0
        }
      }
      return 0
    }
    function check_floor(path,   file, from, to) {
      file = substr(FILENAME, length("src/tessera/") + 1)
      from = substr(file, 1, index(file, "/") - 1)
      to = substr(path, 1, index(path, "/") - 1)
      if (!(from in rank)) {
        report("the folder " from " has no floor: add it to tools/lint_includes.sh")
      } else if (!(to in rank)) {
        report("no module is called " to)
      } else if (to != from && outside_closed_list(file, to)) {
        report(from " may not include " to " (its list is closed)")
      } else if (rank[to] > rank[from] && !listed(exception, num_exceptions, file, path)) {
        report(from " may not include " to ", which is a floor above it")
      }
    }
    BEGIN {
      num_floors = split(ENVIRON["floors"], floor, " ")
      for (i = 1; i <= num_floors; i++) {
        rank[floor[i]] = i
      }
      num_exceptions = split(ENVIRON["exceptions"], exception, "\n")
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
