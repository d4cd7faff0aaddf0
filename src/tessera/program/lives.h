#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tessera/ir/ids.h"
#include "tessera/program/program.h"

namespace tessera {

// An instruction of a call: what comes when, in the order of the calls.
struct Instant {
  std::int64_t call = 0;  // into Program::calls
  std::int64_t instruction = 0;

  friend auto operator<=>(const Instant&, const Instant&) = default;
};

// A buffer in a slot.
struct BufferSlot {
  BufferId buffer = {};
  std::int32_t slot = 0;

  friend auto operator<=>(const BufferSlot&, const BufferSlot&) = default;
};

// Numbers the slots of all buffers of a program from 0.
class SlotNumbers {
 public:
  explicit SlotNumbers(const Program& program);

  std::size_t size() const { return size_; }

  std::size_t operator[](const BufferSlot& of) const {
    return first_[of.buffer.at()] + static_cast<std::size_t>(of.slot);
  }

 private:
  std::vector<std::size_t> first_;  // by buffer
  std::size_t size_ = 0;
};

// A buffer that is not persistent begins to live, before its instruction is done, or ends, after
// that.
struct LifeEvent {
  Instant at = {};
  BufferSlot of = {};
  bool is_end = false;
};

// The lives of a step, call by call: the one clock of planner, verifier and memory table.
class LifeWalk {
 public:
  // Borrows the program for its life.
  explicit LifeWalk(const Program& program);

  // The events of the next call, in order; valid until the one after. Errors: kInternal, naming
  // buffer, call and slot, where a life begins again before it ends, or in a call without a slot of
  // the buffer's pool.
  std::span<const LifeEvent> next_call();

  // After the last call. Errors: kInternal, naming a buffer that no call has ended.
  void end_step() const;

 private:
  // Where a life begins or ends, in a code.
  struct Border {
    std::int32_t instruction = 0;
    bool is_end = false;
    BufferId buffer = {};
  };

  void add_border(const Place& place, bool is_end, BufferId buffer);
  void add_event(const Call& call, const Border& border);
  std::int32_t slot_in(const Call& call, const Buffer& buffer) const;

  const Program& program_;
  SlotNumbers numbers_;
  std::map<Code, std::vector<Border>> borders_;
  std::size_t next_ = 0;     // into the calls
  std::vector<bool> alive_;  // by number
  std::vector<LifeEvent> events_;
};

// Calls act(event) for all of a step, in order. Errors: those of LifeWalk.
template <class Act>
void for_each_life_event(const Program& program, const Act& act) {
  LifeWalk walk(program);
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    for (const LifeEvent& event : walk.next_call()) {
      act(event);
    }
  }
  walk.end_step();
}

// "3 \"h\"", with its slot where there are several.
std::string to_string(const Program& program, const BufferSlot& of);

// "call 4 (backward, microbatch 1)".
std::string call_text(const Program& program, const Call& call);

}  // namespace tessera
