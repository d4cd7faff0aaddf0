#include "tessera/program/step_traffic.h"

#include "tessera/ops/op.h"

namespace tessera {

Traffic step_traffic(const Program& program) {
  Traffic sent;
  for (std::size_t i = 0; i < program.segments.size(); ++i) {
    for (const Instruction& instruction : program.segments[i].instructions) {
      TensorTypes operands;
      for (const TensorRef& operand : instruction.operands) {
        operands.push_back(operand.type);
      }
      add(sent,
          traffic(*instruction.op, operands),
          program.num_runs(SegmentId::of(i), instruction));
    }
  }
  return sent;
}

}  // namespace tessera
