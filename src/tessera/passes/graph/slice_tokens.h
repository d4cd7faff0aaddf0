#pragma once

#include <cstdint>
#include <vector>

#include "tessera/ir/graph.h"

namespace tessera {

// The lengths of the slices of a sequence: those of the first ones are one token more where they
// are not equal. Errors: kInvalidArgument for fewer tokens than slices.
std::vector<std::int64_t> slice_lengths(std::int64_t tokens, std::int64_t slices);

// The forward graph of a step in runs of tokens one after the other: what follows from inputs with
// a dim "seq" is there once for each slice, whose number is its node's chunk. A query sees the keys
// of its own slice and of those before it, which lie in one tensor, each copied behind the last:
//   y = attention(q, k, v, ..)  ->  K0 = cast(k0); ..; y0 = attention(q0, K0, V0, ..) chunk 0
//                                   K1 = concat(K0, cast(k1)); ..; y1 = attention(q1, K1, V1, ..)
// Losses and statistics are sums over the slices, in their order.
// Errors: kUnsupported for an op that mixes tokens otherwise.
Graph slice_tokens(const Graph& graph, std::int64_t slices);

}  // namespace tessera
