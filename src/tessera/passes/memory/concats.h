#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/passes/memory/value_uses.h"

namespace tessera {

// A part of a concat's result.
struct ConcatPart {
  ValueId whole;
  std::int64_t dim = 0;
  std::int64_t begin = 0;  // along dim
};

// Which values are made inside the result of a concat.
struct Concats {
  std::vector<std::optional<ConcatPart>> part_of;                   // by value
  std::map<std::vector<ValueId>, std::vector<ValueId>> results_of;  // by operands, in node order
};

// Parts are the operands of concats (each inside the first that reads it), what ops in place in
// front of a concat overwrite, so that these work in the right memory from the start, and states
// whose new content is a part.
Concats find_concats(const Graph& graph, const ValueUses& uses);

}  // namespace tessera
