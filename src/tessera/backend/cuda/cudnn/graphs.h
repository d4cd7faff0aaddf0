#pragma once

#include <cstddef>
#include <span>

#include "tessera/backend/cuda/cudnn/flash_graph.h"

struct CUstream_st;

namespace tessera::cuda {

// What runs operation graphs: cuDNN on a device, an interpreter where kernels are emulated.
class Graphs {
 public:
  Graphs() = default;
  virtual ~Graphs() = default;
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Whether run() would do it, which for equal problems is always the same.
  virtual bool takes(const FlashProblem& problem) = 0;

  // Attention as the next of `stream`, with flash_workspace_bytes(). Equal arguments give equal
  // bits. False, with nothing done, where it cannot be run so. Errors: kDeviceError.
  virtual bool run(CUstream_st* stream,
                   const FlashProblem& problem,
                   const FlashPointers& pointers,
                   std::span<std::byte> workspace) = 0;
};

// A machine without such a library.
class NoGraphs final : public Graphs {
 public:
  bool takes(const FlashProblem& /*problem*/) override { return false; }

  bool run(CUstream_st* /*stream*/,
           const FlashProblem& /*problem*/,
           const FlashPointers& /*pointers*/,
           std::span<std::byte> /*workspace*/) override {
    return false;
  }
};

}  // namespace tessera::cuda
