#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/ir/graph.h"

namespace tessera {

// Which kernels attention is made of, as text "flash", "fused_softmax" and "unfused".
enum class AttentionKernels : std::uint8_t {
  kFlash,         // one, blockwise
  kFusedSoftmax,  // two batched products around a fused scale, mask and softmax
  kUnfused,       // the same with scale, mask and softmax one by one
};

std::string to_string(AttentionKernels kernels);

// Errors: kInvalidArgument quoting the text.
void parse_text(std::string_view text, AttentionKernels& kernels);

// Writes the attention of a forward graph in several ops, whose backward follows; the probabilities
// of all pairs of queries and keys are then saved for it.
//   o = attention(q, k, v, ids)  ->  x = batched_product(q, k)
//                                    p = scale_mask_softmax(x, ids)
//                                    o = batched_product{form="values"}(p, v)
// unfused, p = scale_mask_softmax{masked=false}(mask_scores(multiply(x), ids)). A cap of the scores
// is an op of its own in both. A fused softmax that is there already is unfused alike. Losses are
// close, not bitwise the same. Errors: kUnsupported where something reads attention's log-sum-exp.
Graph unfuse_attention(Graph graph, AttentionKernels kernels);

// Whether a node is one of those ops, or the dropout between them.
bool is_of_unfused_attention(const Graph& graph, const Node& node);

}  // namespace tessera
