#include "tessera/program/lives.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {

SlotNumbers::SlotNumbers(const Program& program) {
  for (const Buffer& buffer : program.buffers) {
    first_.push_back(size_);
    size_ += static_cast<std::size_t>(program.num_slots(buffer.pool));
  }
}

LifeWalk::LifeWalk(const Program& program)
    : program_(program), numbers_(program), alive_(numbers_.size(), false) {
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    if (const Buffer& buffer = program.buffers[i]; !buffer.persistent) {
      add_border(buffer.begin, false, BufferId::of(i));
      add_border(buffer.end, true, BufferId::of(i));
    }
  }
  for (auto& [code, borders] : borders_) {
    std::ranges::stable_sort(borders, {}, [](const Border& border) {
      return std::tuple(border.instruction, border.is_end);
    });
  }
}

void LifeWalk::add_border(const Place& place, bool is_end, BufferId buffer) {
  borders_[place.code].push_back(
      {.instruction = place.instruction, .is_end = is_end, .buffer = buffer});
}

std::span<const LifeEvent> LifeWalk::next_call() {
  events_.clear();
  const Call& call = program_.calls[next_];
  TESSERA_CHECK(call.slots.size() == program_.pools.size(),
                "{} has slots of {} pools of {}",
                call_text(program_, call),
                call.slots.size(),
                program_.pools.size());
  const Segment& segment = program_[call.segment];
  if (const auto borders = borders_.find(segment.code); borders != borders_.end()) {
    for (const Border& border : borders->second) {
      if (border.instruction >= 0 &&
          std::cmp_less(border.instruction, segment.instructions.size())) {
        add_event(call, border);
      }
    }
  }
  ++next_;
  return events_;
}

void LifeWalk::add_event(const Call& call, const Border& border) {
  const Segment& segment = program_[call.segment];
  const auto at = static_cast<std::size_t>(border.instruction);
  if (!border.is_end && !program_.runs(segment.instructions[at], call)) {
    return;
  }
  const BufferSlot of = {.buffer = border.buffer, .slot = slot_in(call, program_[border.buffer])};
  const std::size_t number = numbers_[of];
  TESSERA_CHECK(border.is_end || !alive_[number],
                "{}: buffer {} begins again while it lives",
                call_text(program_, call),
                to_string(program_, of));
  if (border.is_end && !alive_[number]) {
    return;
  }
  alive_[number] = !border.is_end;
  events_.push_back(
      {.at = {.call = static_cast<std::int64_t>(next_), .instruction = border.instruction},
       .of = of,
       .is_end = border.is_end});
}

std::int32_t LifeWalk::slot_in(const Call& call, const Buffer& buffer) const {
  const std::int32_t slot = Program::slot_of(call, buffer.pool);
  TESSERA_CHECK(slot >= 0 && slot < program_.num_slots(buffer.pool),
                "{}: slot {} of pool \"{}\" with {}, in which buffer \"{}\" lives",
                call_text(program_, call),
                slot,
                program_.pools[buffer.pool.at()].name,
                program_.num_slots(buffer.pool),
                buffer.name);
  return slot;
}

void LifeWalk::end_step() const {
  for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
    const Buffer& buffer = program_.buffers[i];
    for (std::int32_t slot = 0; slot < program_.num_slots(buffer.pool); ++slot) {
      const BufferSlot of = {.buffer = BufferId::of(i), .slot = slot};
      TESSERA_CHECK(!alive_[numbers_[of]], "buffer {} is never freed", to_string(program_, of));
    }
  }
}

std::string to_string(const Program& program, const BufferSlot& of) {
  const Buffer& buffer = program[of.buffer];
  std::string text = format("{} \"{}\"", of.buffer.index, buffer.name);
  if (program.num_slots(buffer.pool) > 1) {
    text += format(" (slot {})", of.slot);
  }
  return text;
}

std::string call_text(const Program& program, const Call& call) {
  return format("call {} ({}, microbatch {})",
                &call - program.calls.data(),
                program[call.segment].name,
                call.microbatch);
}

}  // namespace tessera
