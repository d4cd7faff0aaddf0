#include "tessera/program/step_traffic.h"

#include "tessera/ops/op.h"
#include "tessera/program/operand_types.h"

namespace tessera {

Traffic step_traffic(const Program& program) {
  Traffic sent;
  for (std::size_t i = 0; i < program.segments.size(); ++i) {
    for (const Instruction& instruction : program.segments[i].instructions) {
      add(sent,
          traffic(*instruction.op, operand_types(instruction)),
          program.num_runs(SegmentId::of(i), instruction));
    }
  }
  return sent;
}

}  // namespace tessera
