#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/runtime/executor.h"
#include "tessera/state/training_state.h"

namespace tessera {

// Bytes of parameters, buffers and optimizer state, by name and role.
using States = std::map<std::pair<std::string, TensorRole>, std::vector<std::byte>>;

// The states of a run, put together from the parts that its ranks hold.
class WholeStates {
 public:
  // Those of a rank, whose thread may be any. Errors: kInternal where it holds other bytes than a
  // rank before it.
  void add(Executor& executor, const std::vector<ParameterInit>& parameters, const StatePart& part);

  // Errors: kInternal where no rank holds an element.
  States take();

 private:
  struct Tensor {
    std::vector<std::byte> bytes;
    std::vector<bool> is_held;  // by element
  };

  std::mutex mutex_;
  std::map<std::pair<std::string, TensorRole>, Tensor> tensors_;
};

}  // namespace tessera
