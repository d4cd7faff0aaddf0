#include "tessera/program/verify_aliases.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/program/region.h"

namespace tessera {
namespace {

// Tensors of different buffers are apart because the buffers are.
bool overlap(const TensorRef& a, const TensorRef& b) {
  return a.buffer == b.buffer && tessera::overlap(region_of(a), region_of(b));
}

void check_alias(const OpInfo& facts,
                 const Instruction& instruction,
                 std::size_t o,
                 std::size_t r) {
  const TensorRef& operand = instruction.operands[o];
  const TensorRef& result = instruction.results[r];
  const auto alias =
      std::find_if(facts.aliases.begin(), facts.aliases.end(), [&](const Alias& candidate) {
        return candidate.result == static_cast<std::int32_t>(r) &&
               candidate.operand == static_cast<std::int32_t>(o);
      });
  const bool required = alias != facts.aliases.end() && alias->required;
  if (!required && !overlap(operand, result)) {
    return;
  }
  TESSERA_CHECK(alias != facts.aliases.end(),
                "result {}, {}, overlaps operand {}, {}, which the op does not allow",
                r,
                to_string(result),
                o,
                to_string(operand));
  TESSERA_CHECK(operand.buffer == result.buffer && region_of(operand) == region_of(result) &&
                    size_bytes(operand.type.dtype) == size_bytes(result.type.dtype),
                "result {}, {}, does not lie exactly over operand {}, {}",
                r,
                to_string(result),
                o,
                to_string(operand));
}

}  // namespace

void verify_aliases(const Instruction& instruction) {
  const OpInfo facts = info(*instruction.op);
  const auto& [operands, results] = std::tie(instruction.operands, instruction.results);
  TESSERA_CHECK(operands.size() == static_cast<std::size_t>(facts.num_operands) &&
                    results.size() == static_cast<std::size_t>(facts.num_results),
                "{} operands and {} results, expected {} and {}",
                operands.size(),
                results.size(),
                facts.num_operands,
                facts.num_results);
  for (std::size_t r = 0; r < results.size(); ++r) {
    for (std::size_t other = 0; other < r; ++other) {
      TESSERA_CHECK(!overlap(results[r], results[other]),
                    "results {} and {} overlap in buffer {}",
                    other,
                    r,
                    results[r].buffer.index);
    }
    for (std::size_t o = 0; o < operands.size(); ++o) {
      check_alias(facts, instruction, o, r);
    }
  }
  if (instruction.workspace.valid()) {
    for (const auto* tensors : {&operands, &results}) {
      for (const TensorRef& tensor : *tensors) {
        TESSERA_CHECK(tensor.buffer != instruction.workspace,
                      "workspace {} also holds {}",
                      instruction.workspace.index,
                      to_string(tensor));
      }
    }
  }
}

}  // namespace tessera
