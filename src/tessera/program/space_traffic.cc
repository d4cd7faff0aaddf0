#include "tessera/program/space_traffic.h"

#include "tessera/ops/all_ops.h"

namespace tessera {

SpaceTraffic space_traffic(const Program& program, Space space) {
  SpaceTraffic traffic;
  for (std::size_t i = 0; i < program.segments.size(); ++i) {
    for (const Instruction& instruction : program.segments[i].instructions) {
      const bool fetches = instruction.op->get_if<FetchAttrs>() != nullptr;
      if (!fetches && instruction.op->get_if<StoreAttrs>() == nullptr) {
        continue;
      }
      std::int64_t bytes = 0;
      for (const TensorRef& tensor : fetches ? instruction.operands : instruction.results) {
        const Buffer& buffer = program[tensor.buffer];
        const std::int64_t unit = buffer.alignment();
        bytes += buffer.space == space ? (tensor.type.num_bytes() + unit - 1) / unit * unit : 0;
      }
      (fetches ? traffic.fetched : traffic.stored) +=
          bytes * program.num_runs(SegmentId::of(i), instruction);
    }
  }
  return traffic;
}

}  // namespace tessera
