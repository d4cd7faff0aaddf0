#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
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

  // What has the number.
  BufferSlot of(std::size_t number) const;

 private:
  std::vector<std::size_t> first_;  // by buffer
  std::size_t size_ = 0;
};

// A buffer that is not persistent begins to live, before its instruction is done, or ends, after
// that.
struct LifeEvent {
  Instant at = {};
  BufferSlot of = {};
  std::size_t number = 0;  // of that, by SlotNumbers
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

  // Program::runs() in that call.
  bool runs(const Instruction& instruction) const {
    return !instruction.only_last || next_ == code_of(program_.calls[next_ - 1]).last_call + 1;
  }

  // After the last call. Errors: kInternal, naming a buffer that no call has ended.
  void end_step() const;

 private:
  // Where a life begins or ends, in a code.
  struct Border {
    std::int32_t instruction = 0;
    bool is_end = false;
    BufferId buffer = {};
    PoolId pool = {};       // of the buffer
    std::size_t first = 0;  // number of the buffer in slot 0
  };

  // What segments of one code share.
  struct CodeLives {
    std::vector<Border> borders = {};  // in order
    std::size_t last_call = 0;
  };

  const CodeLives& code_of(const Call& call) const {
    return codes_[code_of_segment_[call.segment.at()]];
  }

  void add_event(const Call& call, const Border& border);
  std::int32_t slot_in(const Call& call, const Border& border) const;

  const Program& program_;
  const SlotNumbers numbers_;
  std::vector<CodeLives> codes_;
  std::vector<std::size_t> code_of_segment_;  // into them
  std::size_t next_ = 0;                      // into the calls
  std::vector<std::uint8_t> alive_;           // by number, 0 or 1
  std::int64_t num_alive_ = 0;
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
