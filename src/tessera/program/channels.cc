#include "tessera/program/channels.h"

#include <algorithm>
#include <iterator>

#include "tessera/ops/op.h"

namespace tessera {

std::map<ChannelName, const Instruction*> channels_of(const Program& program) {
  std::map<ChannelName, const Instruction*> channels;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      TensorTypes operands;
      std::ranges::transform(instruction.operands, std::back_inserter(operands), &TensorRef::type);
      for (const CollectiveUse& use : collectives(*instruction.op, operands)) {
        if (use.channel) {
          channels.try_emplace({use.axes, *use.channel}, &instruction);
        }
      }
    }
  }
  return channels;
}

}  // namespace tessera
