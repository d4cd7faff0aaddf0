#pragma once

#include <cstdint>
#include <span>

#include "tessera/ir/graph.h"

namespace tessera {

// The forward graph of a step in runs of tokens one after the other, of these lengths: what follows
// from inputs with a dim "seq" is there once for each slice, whose number is its node's chunk. A
// query sees the keys of its own slice and of those before it, which lie in one tensor, each copied
// behind the last:
//   y = attention(q, k, v, ..)  ->  K0 = cast(k0); ..; y0 = attention(q0, K0, V0, ..) chunk 0
//                                   K1 = concat(K0, cast(k1)); ..; y1 = attention(q1, K1, V1, ..)
// Losses and statistics are sums over the slices, in their order.
// Errors: kUnsupported for an op that mixes tokens otherwise; kInvalidArgument for other lengths
// than those of the sequences.
Graph slice_tokens(const Graph& graph, std::span<const std::int64_t> lengths);

}  // namespace tessera
