#include "tessera/program/lives.h"

#include <algorithm>
#include <iterator>
#include <map>
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

BufferSlot SlotNumbers::of(std::size_t number) const {
  const auto buffer = std::prev(std::ranges::upper_bound(first_, number));
  return {.buffer = BufferId::of(static_cast<std::size_t>(buffer - first_.begin())),
          .slot = static_cast<std::int32_t>(number - *buffer)};
}

LifeWalk::LifeWalk(const Program& program)
    : program_(program), numbers_(program), alive_(numbers_.size(), 0) {
  std::map<Code, std::size_t> codes;
  for (const Segment& segment : program.segments) {
    code_of_segment_.push_back(codes.emplace(segment.code, codes.size()).first->second);
  }
  codes_.resize(codes.size());
  auto code = codes.end();  // of the last border, as that of the next often is
  const auto add_border = [&](const Place& place, bool is_end, BufferId buffer) {
    if (code == codes.end() || code->first != place.code) {
      code = codes.find(place.code);
    }
    if (code != codes.end()) {
      codes_[code->second].borders.push_back({.instruction = place.instruction,
                                              .is_end = is_end,
                                              .buffer = buffer,
                                              .pool = program[buffer].pool,
                                              .first = numbers_[{.buffer = buffer, .slot = 0}]});
    }
  };
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    if (const Buffer& buffer = program.buffers[i]; !buffer.persistent) {
      add_border(buffer.begin, false, BufferId::of(i));
      add_border(buffer.end, true, BufferId::of(i));
    }
  }
  for (CodeLives& lives : codes_) {
    std::ranges::sort(lives.borders, {}, [](const Border& border) {
      return std::tuple(border.instruction, border.is_end, border.buffer);
    });
  }
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    codes_[code_of_segment_[program.calls[i].segment.at()]].last_call = i;
  }
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
  ++next_;
  for (const Border& border : code_of(call).borders) {
    if (border.instruction >= 0 && std::cmp_less(border.instruction, segment.instructions.size())) {
      add_event(call, border);
    }
  }
  return events_;
}

void LifeWalk::add_event(const Call& call, const Border& border) {
  const Segment& segment = program_[call.segment];
  const auto at = static_cast<std::size_t>(border.instruction);
  if (!border.is_end && !runs(segment.instructions[at])) {
    return;
  }
  const BufferSlot of = {.buffer = border.buffer, .slot = slot_in(call, border)};
  const std::size_t number = border.first + static_cast<std::size_t>(of.slot);
  TESSERA_CHECK(border.is_end || alive_[number] == 0,
                "{}: buffer {} begins again while it lives",
                call_text(program_, call),
                to_string(program_, of));
  if (border.is_end && alive_[number] == 0) {
    return;
  }
  alive_[number] = border.is_end ? 0 : 1;
  num_alive_ += border.is_end ? -1 : 1;
  events_.push_back(
      {.at = {.call = static_cast<std::int64_t>(next_ - 1), .instruction = border.instruction},
       .of = of,
       .number = number,
       .is_end = border.is_end});
}

std::int32_t LifeWalk::slot_in(const Call& call, const Border& border) const {
  if (!border.pool.valid()) {
    return 0;
  }
  const std::int32_t slot = call.slots[border.pool.at()];
  const Pool& pool = program_.pools[border.pool.at()];
  TESSERA_CHECK(slot >= 0 && slot < pool.slots,
                "{}: slot {} of pool \"{}\" with {}, in which buffer \"{}\" lives",
                call_text(program_, call),
                slot,
                pool.name,
                pool.slots,
                program_[border.buffer].name);
  return slot;
}

void LifeWalk::end_step() const {
  if (num_alive_ == 0) {
    return;
  }
  for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
    const Buffer& buffer = program_.buffers[i];
    for (std::int32_t slot = 0; slot < program_.num_slots(buffer.pool); ++slot) {
      const BufferSlot of = {.buffer = BufferId::of(i), .slot = slot};
      TESSERA_CHECK(alive_[numbers_[of]] == 0, "buffer {} is never freed", to_string(program_, of));
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
