#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tessera/plan/compile.h"
#include "tessera/plan/run_layout.h"
#include "tessera/state/training_state.h"

namespace tessera {

// Which part of the states each rank of a run holds, and which of them it saves.
class StateParts {
 public:
  StateParts(const RunLayout& layout, const RunPrograms& programs);

  StatePart of(std::int64_t rank) const;

 private:
  Mesh mesh_;
  DimAxes dims_;
  ByPipelineRank<std::set<std::string>> of_earlier_;
};

// Throws kInternal, with names and pipeline ranks, unless these programs together keep each tensor
// of the model once: its parameters, and their optimizer states in `moments`. A buffer, which is
// alike wherever it is read, may be kept by several, of which the first saves it.
void require_each_tensor_once(const RunPrograms& programs,
                              const std::vector<ParameterInit>& parameters,
                              DType moments);

}  // namespace tessera
