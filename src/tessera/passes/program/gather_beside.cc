#include "tessera/passes/program/gather_beside.h"

#include <cstddef>
#include <map>
#include <set>

#include "tessera/passes/program/new_events.h"
#include "tessera/passes/program/overlap/code_body.h"

namespace tessera {
namespace {

void keep(Program& program, BufferId id) {
  Buffer& buffer = program.buffers[id.at()];
  buffer.persistent = true;
  buffer.begin = buffer.end = {};
}

// By buffer that gathers make, what the end of the last one signals: they run in order.
using Gathered = std::map<BufferId, EventId>;

void wait_for(const Gathered& gathered, Segment& segment) {
  std::set<EventId> awaited;
  for (Instruction& instruction : segment.instructions) {
    for_each_buffer(instruction, [&](BufferId id) {
      const auto found = gathered.find(id);
      if (found != gathered.end() && !is_comm(instruction) &&
          awaited.insert(found->second).second) {
        instruction.waits.push_back(found->second);
      }
    });
  }
}

}  // namespace

Program gather_beside(Program program) {
  std::size_t next_event = first_free_event(program);
  Gathered gathered;
  for (Segment& segment : program.segments) {
    if (segment.code.action != Action::kStart || segment.code.kind != CodeKind::kWork) {
      continue;
    }
    for (Instruction& instruction : segment.instructions) {
      if (!is_gather(instruction)) {
        continue;
      }
      instruction.stream = kCommStream;
      instruction.signals.push_back(EventId::of(next_event));
      gathered[instruction.results[0].buffer] = EventId::of(next_event++);
      for_each_buffer(instruction, [&](BufferId id) { keep(program, id); });
    }
  }
  if (gathered.empty()) {
    return program;
  }
  if (program.streams.size() == 1) {
    program.streams.emplace_back("comm");
  }
  for (Segment& segment : program.segments) {
    wait_for(gathered, segment);
  }
  return program;
}

}  // namespace tessera
