#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backend/cuda/cudnn/cudnn.h"
#include "tessera/backend/cuda/cudnn/operation_graph.h"

namespace tessera::cuda {

// For which device a plan is made: that of a handle, or else one that cuDNN described as JSON
// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION), which need not be there.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  std::string properties = {};
};

struct CudnnRequest {
  const OperationGraph& graph;
  std::int64_t most_workspace = 0;  // bytes
  bool any_order = false;           // an engine may give other bits each time
};

// The kernel that cuDNN made of a graph.
class CudnnPlan {
 public:
  // By the first of the engines that cuDNN proposes which is what was asked for. None, with the
  // reasons, a line each, in `problem`, where there is no such engine. Errors: kDeviceError.
  static std::optional<CudnnPlan> make(const Cudnn& cudnn,
                                       const CudnnTarget& target,
                                       const CudnnRequest& request,
                                       std::string& problem);

  std::int64_t engine() const { return engine_; }

  std::int64_t workspace_bytes() const { return workspace_bytes_; }

  // As the next of the handle's stream. `pointers` are those of the graph's tensors by their
  // places; those of virtual ones and constants do not count. Errors: kDeviceError.
  void run(cudnnHandle_t handle, const std::vector<void*>& pointers, std::byte* workspace) const;

 private:
  CudnnPlan(const Cudnn& cudnn,
            const OperationGraph& graph,
            CudnnDescriptor plan,
            std::int64_t engine,
            std::int64_t workspace_bytes);

  const Cudnn* cudnn_;
  std::vector<std::size_t> in_memory_;  // places of tensors that run() has pointers for
  std::vector<std::pair<std::int64_t, float>> constants_;  // with their numbers
  CudnnDescriptor plan_;
  std::int64_t engine_;
  std::int64_t workspace_bytes_;
};

}  // namespace tessera::cuda
