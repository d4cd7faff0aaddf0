#include "tessera/ops/testing/reference_executor.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/testing/all_samples.h"

namespace tessera::conformance {

std::vector<HostTensor> run_graph(const Graph& graph,
                                  const std::map<ValueId, HostTensor>& sources,
                                  std::span<const CustomReference> custom) {
  std::vector<HostTensor> values;
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const ValueInfo& value = graph.values[i];
    const auto source = sources.find(ValueId::of(i));
    TESSERA_CHECK(value.kind == ValueKind::kResult || source != sources.end(),
                  "no content for the source {}",
                  value.name);
    values.push_back(source != sources.end() ? source->second
                                             : HostTensor(reference_type(value.type)));
  }
  for (const Node& node : graph.nodes) {
    std::vector<HostTensor> operands;
    operands.reserve(node.operands.size());
    for (const ValueId id : node.operands) {
      operands.push_back(values[id.at()]);
    }
    std::vector<HostTensor> results =
        reference_results(*node.op, graph.types(node.operands), operands, custom);
    for (std::size_t i = 0; i < results.size(); ++i) {
      values[node.results[i].at()] = std::move(results[i]);
    }
  }
  return values;
}

}  // namespace tessera::conformance
