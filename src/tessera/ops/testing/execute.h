#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/backend/cpu/context.h"
#include "tessera/ir/op.h"
#include "tessera/ops/testing/host_tensor.h"

namespace tessera::conformance {

// How one run of a kernel is laid out in memory.
struct Execution {
  int threads = 1;
  std::byte poison{0xFF};           // what results and workspace hold before (0xFF: NaNs)
  std::vector<Alias> aliases = {};  // taken beside the required ones
  std::int32_t sliced_dim = -1;     // tensors like operand 0 are slices along this dim; -1: whole
  CommunicatorOf communicator_of = nullptr;  // for an op that knows its place among ranks
  Backend* backend = nullptr;                // runs the op in memory of its own; null: CPU kernels
};

struct Outcome {
  std::vector<HostTensor> results;
  std::vector<std::string> failures;  // writes where the kernel must not write
};

// Runs the kernel of `op` on copies of `operands` (in their own dtypes), every buffer and a
// workspace of exactly workspace_bytes() between guards. A view op, which has no kernel, runs by
// its reference.
Outcome execute(const Op& op, std::span<const HostTensor> operands, const Execution& execution);

}  // namespace tessera::conformance
