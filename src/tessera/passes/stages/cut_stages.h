#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/mesh/axes.h"

namespace tessera {

// How a model is cut along the pipeline.
struct PipelineCut {
  AxisSizes axes;                                // of the pipeline's ranks, innermost first
  std::vector<std::int64_t> layers;              // by stage, how many
  std::vector<std::int64_t> rank_of_stage;       // its place along the axes
  std::vector<std::int64_t> slice_lengths = {};  // tokens of each slice of a sequence; none: whole

  std::int64_t num_slices() const { return std::max<std::int64_t>(1, std::ssize(slice_lengths)); }
};

// The part of a training graph, forward and backward in local shapes, that the pipeline rank at
// place `rank` does (assign_stages()): what it reads of the stages before and after it it receives,
// and what these read of it it sends, through each stage between them.
//   y = stage0(x); z = stage1(y)  ->  rank 0: y = stage0(x); send(y)
//                                     rank 1: y = receive(); z = stage1(y)
// A rank has a chunk for each slice of each of its stages, in the order of the stages; what one of
// them makes for another of the same rank is not sent. What is of a slice, its chunk says before.
// What every stage does for itself the first chunk does that a microbatch comes to and that reads
// it. The channel of the boundary after stage s has number 2 s for what goes to the next stage, and
// 2 s + 1 for what comes back; values go in the order in which the graph defines them. Outputs of
// kind loss and statistic that another rank makes become zeros, so that all ranks can add them up;
// gradients stay where they are made. Sources that the rank does not read go.
// Errors: kInvalidArgument as assign_stages(); kUnsupported where forward needs a later stage's
// value, or backward an earlier one's.
Graph cut_stages(const Graph& graph, const PipelineCut& cut, std::int64_t rank);

}  // namespace tessera
