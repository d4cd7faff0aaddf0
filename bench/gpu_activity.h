#pragma once

#include <optional>
#include <string>

namespace tessera {

// How long the GPU was idle, by CUPTI's records of kernels, copies and fills of this process.
// CUPTI, which is not everywhere, is loaded at run time.
class GpuActivity {
 public:
  // Begins to record. Where it cannot, problem() says why.
  GpuActivity();

  const std::string& problem() const { return problem_; }

  // The share of the time from the first record's begin to the last one's end in which none was at
  // work: 1 minus the union of their intervals. Nothing without records.
  std::optional<double> idle_share();

 private:
  std::string problem_;
};

}  // namespace tessera
