#pragma once

#include <map>
#include <span>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/ops/testing/sample.h"

namespace tessera::conformance {

// Runs all nodes of `graph` in order by their references, in f64, from the content of its sources,
// and returns the content of every value, indexed by value id.
// Errors: kInternal naming a source that `sources` lacks.
std::vector<HostTensor> run_graph(const Graph& graph,
                                  const std::map<ValueId, HostTensor>& sources,
                                  std::span<const CustomReference> custom);

}  // namespace tessera::conformance
