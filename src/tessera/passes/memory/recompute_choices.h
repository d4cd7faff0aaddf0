#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/ir/graph.h"

namespace tessera {

// One way to keep, repeat or store what a layer computes in forward, beside its inputs and what
// ranks made together.
struct KeptChoice {
  std::vector<std::string> keep = {};   // ops, as rules name them
  std::vector<std::string> store = {};  // likewise, of which what is kept waits in another space
  // That stay from forward to backward, of a microbatch. What the layer leaves to the one after it
  // counts where it is stored alone, as so many less.
  std::int64_t bytes = 0;
  std::int64_t stored_bytes = 0;
  double repeated = 0.0;  // seconds of what backward repeats
  double seconds = 0.0;   // with what it costs to store
};

// The ways of one layer of which none is better than another in bytes, these with what is stored,
// which takes memory until it is away, and seconds: from the one that keeps least to the one that
// repeats and stores nothing.
struct LayerChoices {
  std::int32_t layer = 0;
  std::int64_t left_bytes = 0;  // to the layer after it, of what may be stored
  std::vector<KeptChoice> front = {};

  // What a choice keeps in all.
  std::int64_t kept_bytes(std::size_t choice) const { return front[choice].bytes + left_bytes; }
};

// What a node takes, in any unit.
using NodeSeconds = std::function<double(const Graph& graph, const Node& node)>;

struct ChoiceOptions {
  bool may_repeat = true;        // else what backward reads of forward stays kept, as rules made it
  bool splits_backward = false;  // weight gradients are an action of their own
  // What a byte costs that is stored and fetched, in seconds; none: nothing is stored.
  std::optional<double> store_seconds = {};
};

// Of all layers that have a forward and a backward, in a graph that is not recomputed if options
// may repeat. What sums or exchanges over ranks is always kept, and what is random. Of kMostChosen
// ops that a layer may keep, all sets are looked at; of more, the smallest are kept together or not
// at all; likewise of kMostStored that it may store of these. Bytes are those of values before
// storage is assigned, of which views take none.
std::vector<LayerChoices> recompute_choices(const Graph& graph,
                                            const NodeSeconds& seconds,
                                            const ChoiceOptions& options = {});

inline constexpr std::size_t kMostChosen = 14;
inline constexpr std::size_t kMostStored = 8;
inline constexpr std::size_t kMostChoices = 128;  // of a layer, which store

}  // namespace tessera
