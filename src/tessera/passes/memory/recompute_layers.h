#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "tessera/ir/graph.h"

namespace tessera {

// What is kept for backward of that which layers compute in forward, where they are recomputed.
enum class RecomputeKept : std::uint8_t {
  kInputs,              // of the layers
  kLastStage,           // likewise, and everything in the last stage of a pipeline
  kAllButAttention,     // all that attention does not make itself
  kEverySecondProduct,  // what attention makes, sums over ranks, and of a layer's products the
                        // first, the third and so on
};

inline constexpr std::array kRecomputeKept = {RecomputeKept::kInputs,
                                              RecomputeKept::kLastStage,
                                              RecomputeKept::kAllButAttention,
                                              RecomputeKept::kEverySecondProduct};

// "inputs", "last_stage", "all_but_attention", "every_second_product".
std::string_view name(RecomputeKept kept);

// Of what a layer computes in forward, what `how` says is kept for backward, which repeats the
// rest first. Layers from number `end` on are as they were. Bitwise the same results.
//   y = f(x) @forward; dx = f_backward(dy, y) @backward
//   ->  y = f(x) @forward; z = f(x) @backward; dx = f_backward(dy, z) @backward
Graph recompute_layers(const Graph& graph,
                       RecomputeKept how = RecomputeKept::kInputs,
                       std::int64_t end = std::numeric_limits<std::int32_t>::max());

}  // namespace tessera
