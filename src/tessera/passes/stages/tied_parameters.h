#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/dim_axes.h"
#include "tessera/passes/ranks/state_axes.h"

namespace tessera {

struct PipelineCut;

// What a pipeline rank reads of a parameter that is another's.
struct TiedReads {
  bool slices = false;  // as it lies at rest: whole, or over state.param axes
  bool secondary = false;
};

// A parameter that several pipeline ranks use, such as an embedding whose table is the head, too.
// Its owner, the rank of its first use, has its states and updates it; the others have copies of
// what they read.
struct TiedParameter {
  std::string name;
  bool frozen = false;
  std::int64_t owner = 0;
  std::map<std::int64_t, TiedReads> readers;  // by rank, without the owner
  std::vector<std::int64_t> ranks_of_uses;    // where the gradient of each use is made
  TensorType gradient;                        // of a use, in this rank's shape
};

// All of a model, in the order of its parameters.
struct TiedParameters {
  AxisSizes axes;  // of the pipeline's ranks
  // The numbers of the channels to and from owners, after those of the boundaries.
  std::int64_t gradient_channel = 0;
  std::int64_t weight_channel = 0;
  std::vector<TiedParameter> parameters;

  // Whether the parameter is another rank's than `rank`.
  bool is_copied(std::string_view parameter, std::int64_t rank) const;
};

// Those of a graph, in local shapes, that is about to be cut into stages; one with backward has the
// gradients of uses apart. `state` and `dims` as in shard_parameters().
TiedParameters tied_parameters(const Graph& graph,
                               const PipelineCut& cut,
                               const StateAxes& state,
                               const DimAxes& dims);

}  // namespace tessera
