#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tessera/ir/ids.h"
#include "tessera/program/program.h"

namespace tessera {

// Into IssueOrder::steps.
using StepIndex = std::uint32_t;

// An instruction in a call of a step.
struct IssueStep {
  static constexpr std::uint32_t kNoMark = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t call = 0;         // into Program::calls
  std::uint32_t instruction = 0;  // of the call's segment
  std::uint32_t place = 0;        // of the instructions of all segments, one after the other
  std::uint32_t item = 0;         // which of its stream's steps it is, from 0
  std::uint32_t first_wait = 0;   // into IssueOrder::waits
  std::uint32_t mark = kNoMark;   // what it leaves for the other streams that wait for it
  std::uint16_t num_waits = 0;
  std::uint16_t stream = 0;
  bool works = true;  // or only waits, and is waited for: an `only_last` instruction before that

  StreamId stream_id() const { return StreamId::of(stream); }
};

static_assert(sizeof(IssueStep) <= 32);

// What a rank issues in a step, in the order of the calls: what the executor runs, and what else
// walks a program goes through. The steps of a stream run one after the other; one of another
// stream than 0 is issued when stream 0 has done all that stands before it, and each runs after
// those that it waits for.
struct IssueOrder {
  // A wait for an event that nothing has signalled before.
  struct Unmet {
    StepIndex step = 0;
    EventId event = {};
  };

  std::vector<IssueStep> steps;

  // Of each step those that signalled last what it waits for: the latest one of each stream, and
  // none where it comes after them in any case, as after those of its own stream and of stream 0.
  std::vector<StepIndex> waits;

  std::vector<Unmet> unmet;                // in order; none where verify() accepts the program
  std::vector<std::uint32_t> first_place;  // by segment
  std::uint32_t num_marks = 0;  // one is another step's when all have waited for its step

  std::span<const StepIndex> waits_of(const IssueStep& step) const {
    return {waits.data() + step.first_wait, step.num_waits};
  }

  StepIndex index_of(const IssueStep& step) const {
    return static_cast<StepIndex>(&step - steps.data());
  }
};

// Errors: kInternal naming the call, where an instruction is on a stream that the program lacks, or
// a call has no slot of the pool of an event.
IssueOrder issue_order(const Program& program);

inline const Call& call_of(const Program& program, const IssueStep& step) {
  return program.calls[step.call];
}

inline const Instruction& instruction_of(const Program& program, const IssueStep& step) {
  return program[call_of(program, step).segment].instructions[step.instruction];
}

// "segment forward, microbatch 0, instruction 3: all_reduce".
std::string place_text(const Program& program, const IssueStep& step);

}  // namespace tessera
