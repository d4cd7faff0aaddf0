#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/ir/graph.h"

namespace tessera {

// One way to recompute a layer, beside its inputs and what ranks made together.
struct KeptChoice {
  std::vector<std::string> keep;  // ops, as rules name them
  std::int64_t bytes = 0;         // that these keep from forward to backward, of a microbatch
  double seconds = 0.0;           // of what backward repeats
};

// The ways of one layer of which none is better than another in both bytes and seconds: from the
// one that keeps least to the one that repeats nothing.
struct LayerChoices {
  std::int32_t layer = 0;
  std::vector<KeptChoice> front;
};

// What a node takes, in any unit.
using NodeSeconds = std::function<double(const Graph& graph, const Node& node)>;

// Of all layers that have a forward and a backward in a graph that is not recomputed. What sums or
// exchanges over ranks is always kept, and what is random. Of kMostChosen ops that a layer may
// keep, all sets are looked at; of more, the smallest are kept together or not at all. Bytes are
// those of values before storage is assigned, of which views take none.
std::vector<LayerChoices> recompute_choices(const Graph& graph, const NodeSeconds& seconds);

inline constexpr std::size_t kMostChosen = 14;

}  // namespace tessera
