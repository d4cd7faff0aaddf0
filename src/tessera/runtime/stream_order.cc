#include "tessera/runtime/stream_order.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/ir/ids.h"
#include "tessera/program/channels.h"

namespace tessera {

// The work of the streams is the same in every step, so that they need no queues: each has the list
// of all its instructions, and is told how many of them it may run.
StreamOrder::StreamOrder(const Program& program, BoundProgram& bound, Backend& backend)
    : program_(program), bound_(bound), backend_(backend) {
  streams_.resize(program.streams.size() - 1);
  find_items();
  is_by_backend_ = has_other_streams_ && backend.orders_streams();
  if (!is_by_backend_) {
    make_channels();
    start_threads();
  }
}

// Where the backend orders streams both ends of a channel wait for each other, with a step's
// errors.
void StreamOrder::make_channels() {
  std::vector<PlacedTransfer> transfers;
  for (const auto& [name, instruction] : channels_of(program_)) {
    transfers.push_back({.op = instruction->op.get(), .stream = instruction->stream});
  }
  backend_.make_channels(transfers);
  has_channels_ = true;
}

void StreamOrder::find_items() {
  for_each_run(program_, [&](const InstructionRun& /*run*/, const Instruction& instruction) {
    if (instruction.stream != kOwnStream) {
      has_other_streams_ = true;
      std::ranges::for_each(instruction.signals, [&](EventId event) { add_event(event); });
    }
  });
  // By signal, the item that signalled it last; of no item while none has.
  std::vector<Awaited> signalled(signalled_.size(), Awaited{.lane = streams_.size()});
  for_each_run(program_, [&](const InstructionRun& run, const Instruction& instruction) {
    if (instruction.stream == kOwnStream) {
      return;
    }
    const std::size_t lane = instruction.stream.at() - 1;
    std::vector<Item>& items = streams_[lane].items;
    items.push_back({.run = run, .after = awaited_by(run, instruction, signalled)});
    for (const EventId event : instruction.signals) {
      signalled[signal_of(run, event)] = {.lane = lane, .item = items.size() - 1};
    }
  });
}

void StreamOrder::add_event(EventId event) {
  if (first_signal_.size() <= event.at()) {
    first_signal_.resize(event.at() + 1, kOfOwnStream);
  }
  std::size_t& first = first_signal_[event.at()];
  if (first == kOfOwnStream) {
    first = signalled_.size();
    const auto slots = static_cast<std::size_t>(program_.num_slots(program_.pool_of(event)));
    signalled_.resize(first + slots);
  }
}

std::size_t StreamOrder::signal_of(const InstructionRun& run, EventId event) const {
  if (event.at() >= first_signal_.size() || first_signal_[event.at()] == kOfOwnStream) {
    return kOfOwnStream;
  }
  const std::int32_t slot = Program::slot_of(*run.call, program_.pool_of(event));
  return first_signal_[event.at()] + static_cast<std::size_t>(slot);
}

// What stream 0 did before an item of another stream is done when that is issued, and its own
// stream is in order: only items of third streams are left to wait for.
std::vector<Awaited> StreamOrder::awaited_by(const InstructionRun& run,
                                             const Instruction& instruction,
                                             const std::vector<Awaited>& signalled) const {
  std::vector<Awaited> awaited;
  for (const EventId event : instruction.waits) {
    const std::size_t signal = signal_of(run, event);
    if (signal != kOfOwnStream && signalled[signal].lane != streams_.size() &&
        signalled[signal].lane != instruction.stream.at() - 1) {
      awaited.push_back(signalled[signal]);
    }
  }
  return awaited;
}

// The bell wakes the thread of transfers: the lanes ring it that it works off or that one of those
// comes after.
void StreamOrder::make_lanes() {
  World* const world = backend_.world();
  std::vector<bool> rings(streams_.size(), false);
  for (std::size_t lane = 0; lane < streams_.size(); ++lane) {
    Stream& stream = streams_[lane];
    stream.is_of_transfers = world != nullptr && is_of_transfers(stream);
    for (const Item& item : stream.items) {
      for (const Awaited& awaited : item.after) {
        rings[awaited.lane] = rings[awaited.lane] || stream.is_of_transfers;
      }
    }
    rings[lane] = rings[lane] || stream.is_of_transfers;
  }
  for (std::size_t lane = 0; lane < streams_.size(); ++lane) {
    streams_[lane].lane = std::make_unique<Lane>(rings[lane] ? &world->bell() : nullptr);
  }
}

void StreamOrder::start_threads() {
  make_lanes();
  const auto note = [this](const std::exception_ptr& error) { note_failure(error); };
  std::vector<TransferLane> transfers;
  for (std::size_t lane = 0; lane < streams_.size(); ++lane) {
    const std::size_t num_items = streams_[lane].items.size();
    if (streams_[lane].is_of_transfers) {
      transfers.push_back(transfers_of(lane));
    } else if (num_items > 0) {
      threads_.push_back(std::make_unique<StreamThread>(
          *streams_[lane].lane,
          num_items,
          [this, lane](std::size_t item, Lane::Ticket step) { run_item(lane, item, step); },
          note));
    }
  }
  if (!transfers.empty()) {
    transfers_ = std::make_unique<TransferThread>(
        *backend_.world(),
        std::move(transfers),
        [this](const Awaited& awaited, Lane::Ticket step) { return has_ended(awaited, step); },
        note);
  }
}

// The calling thread may be waiting for another stream, which waits for a rank that waits for what
// has failed.
void StreamOrder::note_failure(const std::exception_ptr& error) {
  {
    const std::scoped_lock lock(mutex_);
    if (first_failure_) {
      return;
    }
    first_failure_ = error;
  }
  backend_.abort(to_error(error).what());
}

std::exception_ptr StreamOrder::first_failure() {
  const std::scoped_lock lock(mutex_);
  return first_failure_;
}

bool StreamOrder::is_of_transfers(const Stream& stream) const {
  return !stream.items.empty() && std::ranges::all_of(stream.items, [&](const Item& item) {
    return backend_.channel(*instruction_of(program_, item.run).op) != nullptr;
  });
}

TransferLane StreamOrder::transfers_of(std::size_t lane) const {
  TransferLane result = {.lane = streams_[lane].lane.get(), .transfers = {}};
  for (const Item& item : streams_[lane].items) {
    const Instruction& instruction = instruction_of(program_, item.run);
    const bool runs = program_.runs(instruction, *item.run.call);
    result.transfers.push_back({.channel = runs ? backend_.channel(*instruction.op) : nullptr,
                                .memory = bound_.only_tensor(item.run),
                                .after = item.after,
                                .place = [this, run = item.run] { return bound_.place(run); }});
  }
  return result;
}

bool StreamOrder::has_ended(const Awaited& awaited, Lane::Ticket step) const {
  const Stream& stream = streams_[awaited.lane];
  return stream.lane->done(step * static_cast<Lane::Ticket>(stream.items.size()) +
                           static_cast<Lane::Ticket>(awaited.item) + 1);
}

void StreamOrder::run_item(std::size_t lane, std::size_t item, Lane::Ticket step) {
  const Item& next = streams_[lane].items[item];
  for (const Awaited& awaited : next.after) {
    const Stream& stream = streams_[awaited.lane];
    stream.lane->wait_for(step * static_cast<Lane::Ticket>(stream.items.size()) +
                          static_cast<Lane::Ticket>(awaited.item) + 1);
  }
  bound_.execute(next.run);
}

void StreamOrder::start_step() {
  waited_seconds_ = 0;
  if (!has_channels_) {
    make_channels();
  }
  if (is_by_backend_) {
    std::ranges::fill(signalled_, Signal());
    return;
  }
  for (Signal& signal : signalled_) {
    signal.ticket = streams_[signal.lane].lane->last();  // all of it has ended
  }
}

void StreamOrder::run(const InstructionRun& next) {
  const Instruction& instruction = instruction_of(program_, next);
  if (instruction.stream == kOwnStream) {
    if (!instruction.waits.empty()) {
      wait_for_events(next, instruction);
    }
    bound_.execute(next);
  } else if (is_by_backend_) {
    enqueue(next, instruction);
  } else {
    issue(next, instruction);
  }
}

void StreamOrder::end_step() {
  if (is_by_backend_) {
    return;
  }
  for (const Stream& stream : streams_) {
    wait_for(*stream.lane, stream.lane->last());
  }
}

void StreamOrder::stop() {
  if (is_by_backend_) {
    return;
  }
  for (const Stream& stream : streams_) {
    stream.lane->stop();
  }
}

// The stream may go on as far as here. All that this one did before is done by then, so that no
// event of this stream has to be waited for.
void StreamOrder::issue(const InstructionRun& next, const Instruction& instruction) {
  const std::size_t lane = instruction.stream.at() - 1;
  backend_.hand_over();
  const Lane::Ticket ticket = streams_[lane].lane->issue();
  for (const EventId event : instruction.signals) {
    signalled_[signal_of(next, event)] = {.lane = lane, .ticket = ticket};
  }
}

void StreamOrder::enqueue(const InstructionRun& next, const Instruction& instruction) {
  // A number that no event of the other streams has.
  backend_.signal(signalled_.size(), kOwnStream);
  backend_.wait(signalled_.size(), instruction.stream);
  const std::size_t lane = instruction.stream.at() - 1;
  for (const EventId event : instruction.waits) {
    const std::size_t signal = signal_of(next, event);
    // What third streams have signalled in this step.
    if (signal != kOfOwnStream && signalled_[signal].ticket != 0 &&
        signalled_[signal].lane != lane) {
      backend_.wait(signal, instruction.stream);
    }
  }
  bound_.execute(next);
  for (const EventId event : instruction.signals) {
    const std::size_t signal = signal_of(next, event);
    backend_.signal(signal, instruction.stream);
    signalled_[signal] = {.lane = lane, .ticket = 1};
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
      wait_for(*streams_[signalled_[signal].lane].lane, signalled_[signal].ticket);
    }
  }
}

void StreamOrder::wait_for(const Lane& lane, Lane::Ticket ticket) {
  if (!lane.done(ticket)) {
    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    lane.wait_for(ticket);
    waited_seconds_ += seconds_since(start);
  }
}

}  // namespace tessera
