#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "tessera/ir/dtype.h"
#include "tessera/ir/graph.h"
#include "tessera/mesh/dim_axes.h"
#include "tessera/passes/ranks/state_axes.h"
#include "tessera/passes/stages/tied_parameters.h"

namespace tessera {

// The sums of squares that the gradient's norm is made of: the axes along which each is summed, by
// their text.
using NormSums = std::map<std::string, AxisSizes>;

struct UpdateOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::set<std::string> undecayed = {};  // parameters that it leaves alone
  double clip = 1.0;
  DType moments = DType::kF32;
  std::int64_t num_microbatches = 1;
  std::int64_t slices = 1;  // of the tokens of a microbatch
  StateAxes state = {};
  DimAxes dims = {};  // how parameters are cut: by axes that are then none of their state's
  // The ranks of a pipeline, each with some of the model's parameters: loss, statistics and norm
  // are sums over these axes, too. All have the model's `norm_sums`, zeros where they have none of
  // it.
  AxisSizes pipeline = {};
  NormSums norm_sums = {};
  // The parameters that several of these ranks use, and which of them this one is.
  TiedParameters tied = {};
  std::int64_t pipeline_rank = 0;

  // Whether gradients are sums over several backwards of a step.
  bool adds_up() const { return num_microbatches > 1 || slices > 1; }
};

// Those of the parameters whose gradients are outputs of `graph`.
NormSums norm_sums(const Graph& graph, const UpdateOptions& options);

// Replaces each output of kind gradient by the end of the step:
//   output g gradient of w  ->  r = reduce(g); n = norm(r..); w, m, v = adamw(w, r, m, v, n, ..)
// Of each parameter, `state` is its own (state_axes_of()).
// Gradients, loss and statistics are sums over the labels of one rank: every microbatch's gradient
// is reduced to slices over state.grad axes; with several microbatches, or slices of their tokens,
// these, the loss and the statistics add up in f32 states in the order of the calls, all chunks'
// in the same one; those of a parameter's uses, each of which has its own state, are added in the
// order of use (those that another pipeline rank has made are
// received, and of another's parameter sent and not updated here); then gradients are reduced to
// slices over state.optimizer axes and summed over the others, and loss and statistics are summed
// over all. Then follow the exact global norm, each element counted once over all ranks, the clip
// scale and one adamw per parameter, whose state updates become outputs; where parameters are cut
// less than the optimizer, adamw updates an f32 master slice, and the parameter is gathered from
// it. The outputs "loss" (sum over valid tokens), "grad_norm", "applied" and the statistics stay
// for the host. Scalars it adds: learning_rate, update_number (from 1), apply. Errors:
// kInvalidArgument for an output that is a result, and for a graph without a loss.
Graph append_update(Graph graph, const UpdateOptions& options);

// The graph of a forward pass alone whose loss and statistics are sums over the tokens of one rank:
// they become the sums over all, folded as append_update() folds the loss. Along a pipeline that is
// the update's, so that no forward waits for a later rank's. Results stay: ranks of a pipeline that
// do not make them have zeros.
//   output loss  ->  output sum_over_ranks(loss)
Graph sum_outputs(Graph graph, const UpdateOptions& options);

}  // namespace tessera
