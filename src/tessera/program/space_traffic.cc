#include "tessera/program/space_traffic.h"

#include <cstddef>
#include <vector>

#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

// Of the tensors that lie in the space.
std::int64_t bytes_of(const Program& program, const std::vector<TensorRef>& tensors, Space space) {
  std::int64_t bytes = 0;
  for (const TensorRef& tensor : tensors) {
    const Buffer& buffer = program[tensor.buffer];
    bytes += buffer.space == space ? align_up(tensor.type.num_bytes(), buffer.alignment()) : 0;
  }
  return bytes;
}

}  // namespace

SpaceTraffic space_traffic(const Program& program, Space space) {
  SpaceTraffic traffic;
  for (std::size_t i = 0; i < program.segments.size(); ++i) {
    for (const Instruction& instruction : program.segments[i].instructions) {
      const auto in_all = [&](const std::vector<TensorRef>& tensors) {
        return program.num_runs(SegmentId::of(i), instruction) * bytes_of(program, tensors, space);
      };
      if (instruction.op->get_if<FetchAttrs>() != nullptr) {
        traffic.fetched += in_all(instruction.operands);
      } else if (instruction.op->get_if<StoreAttrs>() != nullptr) {
        traffic.stored += in_all(instruction.results);
      }
    }
  }
  return traffic;
}

}  // namespace tessera
