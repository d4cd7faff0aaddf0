#pragma once

#include <cstdint>

#include "tessera/ir/graph.h"

namespace tessera {

// The forward graph of the next tokens of sequences whose earlier tokens have run already: keys and
// values are written to caches of `length` rows a sequence, states of kind kCache, and attention
// reads these:
//   y = attention(q, k, v, ..)  ->  K = write_rows(cache, k, slots); ..; y = attention(q, K, V, ..)
// Inputs it adds: "slots" (batch, seq) i32, the row of each token in the caches, or -1 for a token
// that is padding; "key_positions" and "key_documents" (batch, keys) i32 of all rows: a row that no
// token was written to must have a position after every query's.
// Errors: kInvalidArgument where attention is not causal, or not forward.
Graph cache_attention(const Graph& graph, std::int64_t length);

}  // namespace tessera
