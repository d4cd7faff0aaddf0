#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/base/random.h"
#include "tessera/ir/op.h"
#include "tessera/ir/tensor_type.h"
#include "tessera/ir/view.h"

namespace tessera {

// One op on tensors of its own without gaps, as often as wanted: for those who measure. At first
// floating elements are as `content` says, others 0.
class OpRuns {
 public:
  // Borrows the backend. Errors: kOutOfMemory.
  OpRuns(Backend& backend,
         OpRef op,
         const TensorTypes& operands,
         const Initial& content = {.normal = {.std = 0.02F}});

  // Seconds of one run from its begin to its end, on another backend of the same memory that needs
  // no more workspace.
  double run(Backend& backend);

  // The same on its own backend.
  double run() { return run(backend_); }

 private:
  View tensor(const TensorType& type, const Initial& content);
  std::byte* allocate(std::int64_t bytes);

  Backend& backend_;
  OpRef op_;
  std::vector<std::unique_ptr<Arena>> memory_;
  std::vector<View> operands_;
  std::vector<View> results_;
  std::span<std::byte> workspace_;
};

}  // namespace tessera
