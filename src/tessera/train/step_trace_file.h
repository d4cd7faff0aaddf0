#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/plan/compile.h"
#include "tessera/runtime/executor.h"
#include "tessera/runtime/step_stamps.h"

namespace tessera {

// What the ranks of a process did in one step of a run, and the file that says so.
class StepTraceFile {
 public:
  // Of `step`, of ranks of this mesh that run these programs. Borrows both for its life.
  StepTraceFile(std::int64_t step, const Mesh& mesh, const RunPrograms& programs)
      : step_(step), mesh_(mesh), programs_(programs) {}

  std::int64_t step() const { return step_; }

  // Errors: kInvalidConfig unless it is one of the steps that a session runs.
  void require_among(std::int64_t first, std::int64_t last) const;

  // Keeps the stamps of the step, which has just ended on that rank. Any thread may.
  void add(std::int64_t rank, const Executor& executor);

  bool has_any() const;

  // Writes trace-<step>.json into the directory, in the format of chrome_json(), where all ranks
  // are there; else trace-<step>-rank-<rank>.json of the first that is. Returns its path. Errors:
  // kDeviceError.
  std::filesystem::path write(const std::filesystem::path& directory) const;

 private:
  using StreamStamps = std::vector<std::vector<StepStamp>>;

  std::int64_t step_;
  const Mesh& mesh_;
  const RunPrograms& programs_;
  mutable std::mutex mutex_;
  std::map<std::int64_t, StreamStamps> stamps_;  // by rank
};

}  // namespace tessera
