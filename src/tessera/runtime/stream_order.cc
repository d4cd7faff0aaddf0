#include "tessera/runtime/stream_order.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/ir/ids.h"

namespace tessera {

namespace {

constexpr StreamId kOtherStream = {1};

}  // namespace

// Its work is the same in every step, so that the thread needs no queue: it has the list of all
// instructions, and is told how many of them it may run.
StreamOrder::StreamOrder(const Program& program, BoundProgram& bound, Backend& backend)
    : program_(program), bound_(bound), backend_(backend) {
  TESSERA_REQUIRE(program.streams.size() <= 2,
                  ErrorCode::kUnsupported,
                  "a program of {} streams: expected at most 2",
                  program.streams.size());
  for_each_run(program, [&](const InstructionRun& run, const Instruction& instruction) {
    if (instruction.stream == kOwnStream) {
      return;
    }
    others_.push_back(run);
    for (const EventId event : instruction.signals) {
      add_event(event);
    }
  });
  is_by_backend_ = has_other_stream() && backend.orders_streams();
  if (has_other_stream() && !is_by_backend_) {
    thread_ = std::make_unique<StreamThread>(
        others_.size(), [this](std::size_t item) { bound_.execute(others_[item]); });
  }
}

void StreamOrder::add_event(EventId event) {
  if (first_signal_.size() <= event.at()) {
    first_signal_.resize(event.at() + 1, kOfOwnStream);
  }
  std::size_t& first = first_signal_[event.at()];
  if (first == kOfOwnStream) {
    first = signalled_.size();
    const auto slots = static_cast<std::size_t>(program_.num_slots(program_.pool_of(event)));
    signalled_.resize(first + slots, 0);
  }
}

std::size_t StreamOrder::signal_of(const InstructionRun& run, EventId event) const {
  if (event.at() >= first_signal_.size() || first_signal_[event.at()] == kOfOwnStream) {
    return kOfOwnStream;
  }
  const std::int32_t slot = Program::slot_of(*run.call, program_.pool_of(event));
  return first_signal_[event.at()] + static_cast<std::size_t>(slot);
}

void StreamOrder::start_step() {
  waited_seconds_ = 0;
  if (thread_) {
    std::ranges::fill(signalled_, thread_->last());
  }
}

void StreamOrder::run(const InstructionRun& next) {
  const Instruction& instruction = instruction_of(program_, next);
  if (instruction.stream == kOwnStream) {
    if (!instruction.waits.empty()) {
      wait_for_events(next, instruction);
    }
    bound_.execute(next);
  } else {
    issue(next, instruction);
  }
}

void StreamOrder::end_step() {
  if (thread_) {
    wait_for(thread_->last());
  }
}

void StreamOrder::stop() {
  if (thread_) {
    thread_->stop();
  }
}

// The other stream may go on as far as here. All that this one did before is done by then, so that
// no event of this stream has to be waited for.
void StreamOrder::issue(const InstructionRun& next, const Instruction& instruction) {
  if (is_by_backend_) {
    // A number that no event of the other stream has.
    backend_.signal(signalled_.size(), kOwnStream);
    backend_.wait(signalled_.size(), kOtherStream);
    bound_.execute(next);
    for (const EventId event : instruction.signals) {
      backend_.signal(signal_of(next, event), kOtherStream);
    }
    return;
  }
  backend_.hand_over();
  const StreamThread::Ticket ticket = thread_->issue();
  for (const EventId event : instruction.signals) {
    signalled_[signal_of(next, event)] = ticket;
  }
}

void StreamOrder::wait_for_events(const InstructionRun& next, const Instruction& instruction) {
  for (const EventId event : instruction.waits) {
    const std::size_t signal = signal_of(next, event);
    if (signal == kOfOwnStream) {
      continue;
    }
    if (is_by_backend_) {
      backend_.wait(signal, kOwnStream);
    } else {
      wait_for(signalled_[signal]);
    }
  }
}

void StreamOrder::wait_for(StreamThread::Ticket ticket) {
  if (!thread_->done(ticket)) {
    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    thread_->wait_for(ticket);
    waited_seconds_ += seconds_since(start);
  }
}

}  // namespace tessera
