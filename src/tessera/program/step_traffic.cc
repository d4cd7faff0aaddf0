#include "tessera/program/step_traffic.h"

#include <vector>

#include "tessera/ops/op.h"

namespace tessera {
namespace {

Traffic segment_traffic(const Segment& segment) {
  Traffic sent;
  for (const Instruction& instruction : segment.instructions) {
    TensorTypes operands;
    for (const TensorRef& operand : instruction.operands) {
      operands.push_back(operand.type);
    }
    add(sent, traffic(*instruction.op, operands));
  }
  return sent;
}

}  // namespace

Traffic step_traffic(const Program& program) {
  std::vector<std::int64_t> calls(program.segments.size());
  for (const Call& call : program.calls) {
    ++calls[call.segment.at()];
  }
  Traffic sent;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    add(sent, segment_traffic(program.segments[i]), calls[i]);
  }
  return sent;
}

}  // namespace tessera
