#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tessera/ir/graph.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama/llama.h"
#include "tessera/plan/graphs.h"

namespace tessera {

// For tests of passes: training graphs before any pass, and what a graph has.

inline Graph small_llama(std::int64_t layers = 2, DType dtype = DType::kF32) {
  const LlamaConfig config{
      .dim = 8, .layers = layers, .heads = 4, .kv_heads = 2, .ffn = 12, .vocab = 40};
  return training_graph(describe_llama(config), 2, 6, dtype);
}

inline std::map<std::string, int> count_ops(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Node& node : graph.nodes) {
    ++counts[to_string(*node.op)];
  }
  return counts;
}

inline int count(const Graph& graph, std::string_view op) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& n) {
    return info(*n.op).name == op;
  }));
}

// Of two layers.
inline Graph small_gpt2() {
  return training_graph(describe_gpt2({.dim = 8,
                                       .layers = 2,
                                       .heads = 2,
                                       .ffn = 12,
                                       .vocab = 40,
                                       .padded_vocab = 40,
                                       .positions = 6}),
                        2,
                        6,
                        DType::kF32);
}

}  // namespace tessera
