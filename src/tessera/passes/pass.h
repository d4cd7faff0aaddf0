#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "tessera/ir/dtype.h"
#include "tessera/ir/graph.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/dim_axes.h"
#include "tessera/mesh/placement.h"
#include "tessera/passes/partition.h"

namespace tessera {

// The graph passes, each from graph to graph. passes/pipeline.cc is the page that orders them.

// Over which axes training state is cut (docs/design/placements.md): each state over the first so
// many of `axes`, the ranks over which gradients are partial, innermost level first; secondary is
// at most param, param at most grad, grad at most optimizer. The formats of `wires` are those of
// `axes`, one for each or one for all.
struct StateAxes {
  AxisSizes axes;
  std::size_t param = 0;
  std::size_t secondary = 0;
  std::size_t grad = 0;
  std::size_t optimizer = 0;
  StateWires wires = {};
  SecondaryUse secondary_use = SecondaryUse::kAll;
};

// Parameters at rest as slices over state.param axes, under their old names. Each layer's forward
// and each layer's backward gathers what it reads, and keeps nothing of it for later. Where
// secondary is less than param, they (or backward alone: secondary_use) gather it from a state
// "secondary.NAME", a copy over that many axes (over none: the whole, which needs no gather), which
// append_update() writes anew whenever the weights change.
Graph shard_parameters(const Graph& graph, const StateAxes& state);

// Replaces each output of kind gradient by the end of the step. Gradients, loss and statistics are
// sums over the labels of one rank: every microbatch's gradient is reduced to slices over
// state.grad axes; with several microbatches these, the loss and the statistics add up in f32
// states in microbatch order; then gradients are reduced to slices over state.optimizer axes and
// summed over the others, and loss and statistics are summed over all. It follows the exact global
// norm, the clip scale and one adamw per parameter, whose state updates become outputs; where
// parameters are cut less than the optimizer, adamw updates an f32 master slice, and the parameter
// is gathered from it. The outputs "loss" (sum over valid tokens), "grad_norm", "applied" and the
// statistics stay for the host. Scalars it adds: learning_rate, update_number (from 1), apply.
// Errors: kInvalidArgument for an output that is a result, and for a graph without a loss.
struct UpdateOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::set<std::string> undecayed = {};  // parameters that it leaves alone
  double clip = 1.0;
  DType moments = DType::kF32;
  std::int64_t num_microbatches = 1;
  StateAxes state = {};
  DimAxes dims = {};  // how gradients are cut: their squares add up over the axes
};

Graph append_update(Graph graph, const UpdateOptions& options);

// The graph of a forward pass alone whose loss and statistics are sums over the tokens of one rank:
// they become the sums over all, folded as append_update() folds the loss.
Graph sum_outputs(Graph graph, const StateAxes& state);

// What attention may take for granted (AttentionAttrs).
struct AttentionChoices {
  bool whole_rows = false;
  bool any_order = false;

  friend bool operator==(const AttentionChoices&, const AttentionChoices&) = default;
};

// Tells the attention of a forward graph, and with it that of backward.
Graph choose_attention(Graph graph, const AttentionChoices& choices);

// How much of logits a GPU has at one time: with fewer rows, moving the head and the sums of its
// gradient for each chunk takes longer than its products.
inline constexpr std::int64_t kDeviceLogitsBytes = std::int64_t{1} << 30U;

// Rows whose logits, of the whole vocabulary, take at most so many bytes: a multiple of 256, and
// 256 at least.
std::int64_t rows_of_logits(std::int64_t vocab, DType logits, std::int64_t logits_bytes);

// Cuts the rows of a forward graph's losses, and with them those of backward, into chunks of
// rows_of_logits(). Gradients of the head are sums over chunks, which this rounds in another place.
Graph chunk_loss(Graph graph, std::int64_t logits_bytes);

// Rounds the logits of a forward graph's losses, and with them those of backward, to bf16. Before
// chunk_loss(), whose chunks are then twice as long.
Graph round_logits(Graph graph);

// Rounds the gradients of weights that products of bf16 make to bf16, where they are made: what
// adds up none of them moves half as much. All others stay f32.
Graph round_gradients(Graph graph);

// Products in 8-bit floats (ops/float8/float8.h): which, and how their factors are quantized.
struct Float8Options {
  bool rowwise = false;  // a power of two for each row and column in place of one scale a tensor
  DType gradients = DType::kF8E5M2;  // of what backward reads; all else is f8e4m3
  std::int64_t skip_first = 0;       // layers that stay as they are
  std::int64_t skip_last = 0;
  bool head = false;               // the products of cross_entropy, too
  bool fast_accumulation = false;  // of forward in the layers (ScaledMatmulAttrs)
  bool keep_weight_codes = false;  // from forward to backward, where one scale serves both
};

// Makes the matrix products of the layers, those of backward too, products of 8-bit floats with
// scales of the values at hand. Parameters and gradients keep their dtypes. Adapters, and what
// stands outside of layers (the head, unless it is chosen), stay as they are. It works on global
// shapes: a scale does not depend on how its tensor is cut, but on the microbatch, of all data
// ranks. Errors: kInvalidArgument where no product is left.
Graph quantize_products(const Graph& graph, const Float8Options& options);

// Lets products add biases of several dims (those of heads) to their sums: on a GPU these are then
// rounded once. A bias of one dim is added by what reads the sum, which fuse() sees to.
Graph bias_products(const Graph& graph);

// Computes matrix products of one input with several weights (q, k, v; gate, up) as one: weights,
// results and gradients become parts of one tensor. Three products become one in forward, for the
// input's gradient and for the weights' gradients. A weight joins one group at most. Which products
// run as one is part of the run (D1): a library's sums depend on the shape.
Graph group_gemms(const Graph& graph);

// Lets products apply gelu to their sums, and gelu's slope to the gradients that they make, for
// devices whose library does so before it rounds and writes them. Before recompute_layers(), so
// that what is computed again is the same op, and before fuse(), which gives biases to gelu.
Graph gelu_products(const Graph& graph);

// The forward graph of the next tokens of sequences whose earlier tokens have run already: keys and
// values are written to caches of `length` rows a sequence, states of kind kCache, and attention
// reads these. Inputs it adds: "slots" (batch, seq) i32, the row of each token in the caches, or -1
// for a token that is padding; "key_positions" and "key_documents" (batch, keys) i32 of all rows: a
// row that no token was written to must have a position behind every query's.
// Errors: kInvalidArgument where attention is not causal, or not forward.
Graph cache_attention(const Graph& graph, std::int64_t length);

// Full recompute: nothing that a layer computes in forward is kept for backward but the layer's
// input; backward repeats the layer's forward first. Bitwise the same results.
Graph recompute_layers(const Graph& graph);

// Joins nodes whose joint kernel is bitwise their sequence: add into rms_norm, the residual
// gradient and the gain's gradient into rms_norm_backward, loss and its gradients into one pass
// over the logits, the largest magnitude of what is to be quantized into the op that makes it,
// transposed codes into quantization.
Graph fuse(const Graph& graph);

// Joins the accumulation of a gradient with the op that makes it, those of grouped products too.
// Libraries add what a product is added to where it suits them, so that this is part of the run
// (D1) and not of fuse().
Graph join_accumulation(const Graph& graph);

// The same graph for a step's first microbatch: accumulators are written instead of added to.
// Value ids stay.
Graph start_accumulators(Graph graph);

}  // namespace tessera
