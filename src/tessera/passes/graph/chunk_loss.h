#pragma once

#include <cstdint>

#include "tessera/ir/dtype.h"
#include "tessera/ir/graph.h"

namespace tessera {

// How much of logits a GPU has at one time: with fewer rows, moving the head and the sums of its
// gradient for each chunk takes longer than its products.
inline constexpr std::int64_t kDeviceLogitsBytes = std::int64_t{1} << 30U;

// Rows whose logits, of the whole vocabulary, take at most so many bytes: a multiple of 256, and
// 256 at least.
std::int64_t rows_of_logits(std::int64_t vocab, DType logits, std::int64_t logits_bytes);

// Cuts the rows of a forward graph's losses, and with them those of backward, into chunks of
// rows_of_logits():
//   loss = cross_entropy(x, head, labels, ..)  ->  loss = cross_entropy{chunk=ROWS}(..)
// Gradients of the head are sums over chunks, which this rounds in another place.
Graph chunk_loss(Graph graph, std::int64_t logits_bytes);

}  // namespace tessera
