#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// What is kept for backward of that which a layer computes in forward, where it is recomputed.
enum class RecomputeKept : std::uint8_t {
  kAll,                 // that forward makes
  kInputs,              // of the layer
  kAllButAttention,     // all that attention does not make itself
  kEverySecondProduct,  // what attention makes, sums over ranks, and of a layer's products the
                        // first, the third and so on
  kAllButCheap,         // all that needs a product, attention or ranks, or more than what is kept
};

inline constexpr std::array kRecomputeKept = {RecomputeKept::kAll,
                                              RecomputeKept::kInputs,
                                              RecomputeKept::kAllButAttention,
                                              RecomputeKept::kEverySecondProduct,
                                              RecomputeKept::kAllButCheap};

// "all", "inputs", "all_but_attention", "every_second_product", "all_but_cheap".
std::string_view name(RecomputeKept kept);

// How the layers [first, end) of a model are recomputed. Ops are named as in graphs, "rms_norm" for
// all of a layer, or with their number among these in the order of its forward, "rms_norm.1". The
// results of ops to store leave if the plan has a space for activations.
struct RecomputeRule {
  std::int64_t first = 0;
  std::int64_t end = std::numeric_limits<std::int32_t>::max();
  RecomputeKept kept = RecomputeKept::kInputs;
  std::vector<std::string> keep = {};   // ops whose results are kept in any case
  std::vector<std::string> again = {};  // ops that are computed again in any case
  std::vector<std::string> store = {};  // ops of which what is kept waits in another space

  bool contains(std::int64_t layer) const { return first <= layer && layer < end; }

  friend bool operator==(const RecomputeRule&, const RecomputeRule&) = default;
};

// In the order of layers, of which each is in one at most; those that are in none keep all.
using RecomputeRules = std::vector<RecomputeRule>;

// One rule for all layers.
RecomputeRules recompute_all(RecomputeKept kept = RecomputeKept::kInputs);

}  // namespace tessera
