#include "tessera/program/issue_order.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/op.h"
#include "tessera/program/lives.h"

namespace tessera {
namespace {

constexpr StepIndex kNoStep = std::numeric_limits<StepIndex>::max();

// An event in each slot of its pool, numbered from `first`.
struct EventSlots {
  EventId event = {};
  PoolId pool = {};
  std::uint32_t first = 0;
  std::uint32_t num_slots = 1;
};

// An instruction that waits, signals, or works in the last call alone.
struct SpecialPlace {
  std::uint32_t instruction = 0;
  std::uint32_t first_event = 0;  // of those that it waits for, before those that it signals
  std::uint32_t num_waits = 0;
  std::uint32_t num_signals = 0;
  bool only_last = false;
};

class OrderBuilder {
 public:
  explicit OrderBuilder(const Program& program) : program_(program) {
    TESSERA_CHECK(num_streams() < std::numeric_limits<std::uint16_t>::max(),
                  "a program of {} streams",
                  num_streams());
    std::map<EventId, EventSlots> events;
    for (const Segment& segment : program.segments) {
      order_.first_place.push_back(static_cast<std::uint32_t>(steps_.size()));
      first_special_.push_back(specials_.size());
      for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
        add_place(segment, i, events);
      }
    }
    first_special_.push_back(specials_.size());
    signalled_.assign(num_signals_, kNoStep);
    reserve();
  }

  IssueOrder build() {
    const std::vector<bool> are_last = last_calls();
    std::vector<std::uint32_t> num_items(num_streams(), 0);
    for (std::size_t call = 0; call < program_.calls.size(); ++call) {
      const SegmentId segment = program_.calls[call].segment;
      const std::size_t first = order_.steps.size();
      const auto steps = steps_.begin() + order_.first_place[segment.at()];
      order_.steps.insert(
          order_.steps.end(), steps, steps + std::ssize(program_[segment].instructions));
      for (IssueStep& step : std::span(order_.steps).subspan(first)) {
        step.call = static_cast<std::uint32_t>(call);
        step.item = num_items[step.stream]++;
      }
      for (std::size_t i = first_special_[segment.at()]; i < first_special_[segment.at() + 1];
           ++i) {
        finish(order_.steps[first + specials_[i].instruction], specials_[i], are_last[call]);
      }
    }
    mark_awaited();
    return std::move(order_);
  }

 private:
  std::size_t num_streams() const { return program_.streams.size(); }

  void add_place(const Segment& segment, std::size_t index, std::map<EventId, EventSlots>& events) {
    const Instruction& instruction = segment.instructions[index];
    TESSERA_CHECK(instruction.stream.valid() && instruction.stream.at() < num_streams(),
                  "segment {}: stream {} of {}",
                  segment.name,
                  instruction.stream.index,
                  num_streams());
    const auto number = static_cast<std::uint32_t>(index);
    steps_.push_back({.instruction = number,
                      .place = static_cast<std::uint32_t>(steps_.size()),
                      .stream = static_cast<std::uint16_t>(instruction.stream.index)});
    if (instruction.waits.empty() && instruction.signals.empty() && !instruction.only_last) {
      return;
    }
    specials_.push_back({.instruction = number,
                         .first_event = static_cast<std::uint32_t>(events_.size()),
                         .num_waits = static_cast<std::uint32_t>(instruction.waits.size()),
                         .num_signals = static_cast<std::uint32_t>(instruction.signals.size()),
                         .only_last = instruction.only_last});
    for (const auto* of_instruction : {&instruction.waits, &instruction.signals}) {
      for (const EventId event : *of_instruction) {
        events_.push_back(slots_of(event, events));
      }
    }
  }

  EventSlots slots_of(EventId event, std::map<EventId, EventSlots>& events) {
    const auto [found, is_new] = events.try_emplace(event);
    if (is_new) {
      const PoolId pool = program_.pool_of(event);
      found->second = {.event = event,
                       .pool = pool,
                       .first = num_signals_,
                       .num_slots = static_cast<std::uint32_t>(program_.num_slots(pool))};
      num_signals_ += found->second.num_slots;
    }
    return found->second;
  }

  void reserve() {
    std::size_t num_steps = 0;
    for (const Call& call : program_.calls) {
      num_steps += program_[call.segment].instructions.size();
    }
    TESSERA_CHECK(num_steps < kNoStep, "a step of {} instructions", num_steps);
    order_.steps.reserve(num_steps);
  }

  // By call, whether it is the last one of its code.
  std::vector<bool> last_calls() const {
    std::map<Code, std::size_t> codes;
    std::vector<std::size_t> code_of_segment;
    for (const Segment& segment : program_.segments) {
      code_of_segment.push_back(codes.emplace(segment.code, codes.size()).first->second);
    }
    std::vector<bool> seen(codes.size(), false);
    std::vector<bool> are_last(program_.calls.size(), false);
    for (std::size_t call = program_.calls.size(); call-- > 0;) {
      const std::size_t code = code_of_segment[program_.calls[call].segment.at()];
      are_last[call] = !seen[code];
      seen[code] = true;
    }
    return are_last;
  }

  void finish(IssueStep& step, const SpecialPlace& place, bool is_last) {
    step.works = !place.only_last || is_last;
    step.first_wait = static_cast<std::uint32_t>(order_.waits.size());
    const Call& call = program_.calls[step.call];
    const EventSlots* event = events_.data() + place.first_event;
    for (std::uint32_t i = 0; i < place.num_waits; ++i, ++event) {
      add_wait(step, signalled_[number_of(*event, call)], event->event);
    }
    for (std::uint32_t i = 0; i < place.num_signals; ++i, ++event) {
      add_signal(step, number_of(*event, call));
    }
  }

  std::size_t number_of(const EventSlots& event, const Call& call) const {
    if (!event.pool.valid()) {
      return event.first;
    }
    const std::size_t pool = event.pool.at();
    if (pool >= call.slots.size() ||
        static_cast<std::uint32_t>(call.slots[pool]) >= event.num_slots) {
      refuse_slot(event, call);
    }
    return event.first + static_cast<std::uint32_t>(call.slots[pool]);
  }

  [[noreturn]] void refuse_slot(const EventSlots& event, const Call& call) const {
    TESSERA_CHECK(call.slots.size() == program_.pools.size(),
                  "{} has slots of {} pools of {}",
                  call_text(program_, call),
                  call.slots.size(),
                  program_.pools.size());
    fail(ErrorCode::kInternal,
         "{}: slot {} of pool \"{}\" with {}, in which event {} is",
         call_text(program_, call),
         Program::slot_of(call, event.pool),
         program_.pools[event.pool.at()].name,
         event.num_slots,
         event.event.index);
  }

  // For a step before it.
  void add_wait(IssueStep& step, StepIndex awaited, EventId event) {
    if (awaited == kNoStep) {
      order_.unmet.push_back({.step = order_.index_of(step), .event = event});
      return;
    }
    const std::uint16_t stream = order_.steps[awaited].stream;
    if (stream == 0 || stream == step.stream) {
      return;
    }
    const auto same = std::find_if(
        order_.waits.begin() + step.first_wait, order_.waits.end(), [&](StepIndex other) {
          return order_.steps[other].stream == stream;
        });
    if (same != order_.waits.end()) {
      *same = std::max(*same, awaited);
      return;
    }
    order_.waits.push_back(awaited);
    ++step.num_waits;
  }

  void add_signal(const IssueStep& step, std::size_t number) {
    signalled_[number] = order_.index_of(step);
  }

  // A mark of each step that others wait for, which is free again when the last of them has.
  void mark_awaited() {
    std::vector<StepIndex> last_waiter(order_.steps.size(), kNoStep);
    for (const IssueStep& step : order_.steps) {
      for (const StepIndex awaited : order_.waits_of(step)) {
        last_waiter[awaited] = order_.index_of(step);
      }
    }
    std::vector<std::uint32_t> free;
    for (StepIndex at = 0; at < order_.steps.size(); ++at) {
      IssueStep& step = order_.steps[at];
      for (const StepIndex awaited : order_.waits_of(step)) {
        if (last_waiter[awaited] == at) {
          free.push_back(order_.steps[awaited].mark);
        }
      }
      if (last_waiter[at] == kNoStep) {
        continue;
      }
      if (free.empty()) {
        step.mark = order_.num_marks++;
      } else {
        step.mark = free.back();
        free.pop_back();
      }
    }
  }

  const Program& program_;
  std::vector<IssueStep> steps_;  // by place, as those of all calls are
  std::vector<SpecialPlace> specials_;
  std::vector<std::size_t> first_special_;  // by segment, and the end
  std::vector<EventSlots> events_;          // that are waited for, and that are signalled
  std::uint32_t num_signals_ = 0;
  std::vector<StepIndex> signalled_;  // by event and slot, the last step that did
  IssueOrder order_;
};

}  // namespace

IssueOrder issue_order(const Program& program) {
  return OrderBuilder(program).build();
}

std::string place_text(const Program& program, const IssueStep& step) {
  const Call& call = call_of(program, step);
  return format("segment {}, microbatch {}, instruction {}: {}",
                program[call.segment].name,
                call.microbatch,
                step.instruction,
                info(*instruction_of(program, step).op).name);
}

}  // namespace tessera
