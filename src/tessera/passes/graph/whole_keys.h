#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Gives attention of a forward graph, whose sequences are to be cut over context ranks, the ids of
// all keys as inputs of their own, which no axis cuts:
//   y = attention(q, k, v, positions, positions, documents, documents)
//   ->  y = attention(q, k, v, positions, key_positions, documents, key_documents)
// key_positions and key_documents (batch, keys) i32 lie as the ranks' parts do, one after the
// other. Attention by heads, whose ranks have all queries, too, reads those alone.
Graph whole_keys(Graph graph);

}  // namespace tessera
