#include "tessera/passes/ranks/laid_out_graph.h"

#include <cstddef>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {

std::string to_string(const LaidOutGraph& laid_out) {
  const Graph& graph = laid_out.graph;
  std::string text = to_string(graph) + "layouts {\n";
  const auto use = [&](const std::string& who, ValueId value, const Layout& layout) {
    if (layout != laid_out.values[value.at()]) {
      text +=
          format("  {} reads %{} as {}\n", who, value.index, to_string(layout, graph[value].type));
    }
  };
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    text += format("  %{} {}\n", i, to_string(laid_out.values[i], graph.values[i].type));
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    for (std::size_t o = 0; o < node.operands.size(); ++o) {
      use(format("%{}", node.results[0].index), node.operands[o], laid_out.operands[i][o]);
    }
  }
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    use(format("\"{}\"", graph.outputs[i].name), graph.outputs[i].value, laid_out.outputs[i]);
  }
  return text + "}\n";
}

void verify(const LaidOutGraph& laid_out) {
  const Graph& graph = laid_out.graph;
  verify(graph);
  TESSERA_CHECK(laid_out.values.size() == graph.values.size() &&
                    laid_out.operands.size() == graph.nodes.size() &&
                    laid_out.outputs.size() == graph.outputs.size(),
                "layouts of {} values, {} nodes and {} outputs for a graph of {}, {} and {}",
                laid_out.values.size(),
                laid_out.operands.size(),
                laid_out.outputs.size(),
                graph.values.size(),
                graph.nodes.size(),
                graph.outputs.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    verify(laid_out.values[i], graph.values[i].type);
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const std::vector<ValueId>& operands = graph.nodes[i].operands;
    TESSERA_CHECK(laid_out.operands[i].size() == operands.size(),
                  "node {} has {} operands, and layouts of {}",
                  i,
                  operands.size(),
                  laid_out.operands[i].size());
    for (std::size_t o = 0; o < operands.size(); ++o) {
      verify(laid_out.operands[i][o], graph[operands[o]].type);
    }
  }
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    verify(laid_out.outputs[i], graph[graph.outputs[i].value].type);
  }
}

}  // namespace tessera
