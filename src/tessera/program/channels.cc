#include "tessera/program/channels.h"

#include "tessera/ops/op.h"
#include "tessera/program/operand_types.h"

namespace tessera {

std::map<ChannelName, const Instruction*> channels_of(const Program& program) {
  std::map<ChannelName, const Instruction*> channels;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      for (const CollectiveUse& use : collectives(*instruction.op, operand_types(instruction))) {
        if (use.channel) {
          channels.try_emplace({use.axes, *use.channel}, &instruction);
        }
      }
    }
  }
  return channels;
}

}  // namespace tessera
