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
#include "tessera/program/channels.h"

namespace tessera {

// The work of the streams is the same in every step, so that they need no queues: each has the list
// of all its steps, and is told how many of them it may run.
StreamOrder::StreamOrder(const Program& program,
                         const IssueOrder& order,
                         BoundProgram& bound,
                         Backend& backend)
    : program_(program),
      order_(order),
      bound_(bound),
      backend_(backend),
      stamps_(order, program.streams.size()) {
  streams_.resize(program.streams.size() - 1);
  for (const IssueStep& step : order.steps) {
    if (step.stream != 0) {
      has_other_streams_ = true;
      streams_[step.stream - 1U].steps.push_back(order.index_of(step));
    }
  }
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

// The bell wakes the thread of transfers: the lanes ring it that it works off or that one of those
// comes after.
void StreamOrder::make_lanes() {
  World* const world = backend_.world();
  std::vector<bool> rings(streams_.size(), false);
  for (std::size_t lane = 0; lane < streams_.size(); ++lane) {
    Stream& stream = streams_[lane];
    stream.is_of_transfers = world != nullptr && is_of_transfers(stream);
    for (const StepIndex step : stream.steps) {
      for (const StepIndex awaited : order_.waits_of(order_.steps[step])) {
        const std::size_t other = order_.steps[awaited].stream - 1U;
        rings[other] = rings[other] || stream.is_of_transfers;
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
    const std::size_t num_items = streams_[lane].steps.size();
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
        note,
        stamps_);
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
  return !stream.steps.empty() && std::ranges::all_of(stream.steps, [&](StepIndex step) {
    return backend_.channel(*instruction_of(program_, order_.steps[step]).op) != nullptr;
  });
}

TransferLane StreamOrder::transfers_of(std::size_t lane) const {
  TransferLane result = {.lane = streams_[lane].lane.get(), .transfers = {}};
  for (const StepIndex index : streams_[lane].steps) {
    const IssueStep& step = order_.steps[index];
    std::vector<Awaited> after;
    for (const StepIndex awaited : order_.waits_of(step)) {
      after.push_back(
          {.lane = order_.steps[awaited].stream - 1U, .item = order_.steps[awaited].item});
    }
    result.transfers.push_back(
        {.step = &step,
         .channel = step.works ? backend_.channel(*instruction_of(program_, step).op) : nullptr,
         .memory = bound_.only_tensor(step),
         .after = std::move(after),
         .place = [this, &step] { return bound_.place(step); }});
  }
  return result;
}

bool StreamOrder::has_ended(const Awaited& awaited, Lane::Ticket step) const {
  const Stream& stream = streams_[awaited.lane];
  return stream.lane->done(step * static_cast<Lane::Ticket>(stream.steps.size()) +
                           static_cast<Lane::Ticket>(awaited.item) + 1);
}

void StreamOrder::run_item(std::size_t lane, std::size_t item, Lane::Ticket step) {
  const IssueStep& next = order_.steps[streams_[lane].steps[item]];
  for (const StepIndex awaited : order_.waits_of(next)) {
    const Stream& stream = stream_of(order_.steps[awaited]);
    stream.lane->wait_for(
        ticket(order_.steps[awaited], step * static_cast<Lane::Ticket>(stream.steps.size())));
  }
  execute(next);
}

void StreamOrder::execute(const IssueStep& step) {
  if (!stamps_.is_on()) {
    bound_.execute(step);
    return;
  }
  const std::int64_t begin = StepStamps::now();
  bound_.execute(step);
  stamps_.add(step, begin);
}

void StreamOrder::start_step() {
  waited_seconds_ = 0;
  if (!has_channels_) {
    make_channels();
  }
  if (is_by_backend_) {
    return;
  }
  for (Stream& stream : streams_) {
    stream.before = stream.lane->last();  // all of it has ended
  }
}

void StreamOrder::run(const IssueStep& next) {
  if (next.stream == 0) {
    run_own(next);
  } else if (is_by_backend_) {
    enqueue(next);
  } else {
    // The stream may go on as far as here. All that this one did before is done by then, so that it
    // waits for nothing of this stream.
    backend_.hand_over();
    stream_of(next).lane->issue();
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

void StreamOrder::run_own(const IssueStep& next) {
  for (const StepIndex awaited : order_.waits_of(next)) {
    const IssueStep& step = order_.steps[awaited];
    if (is_by_backend_) {
      backend_.wait(step.mark, next.stream_id());
    } else {
      wait_for(*stream_of(step).lane, ticket(step, stream_of(step).before));
    }
  }
  execute(next);
}

void StreamOrder::enqueue(const IssueStep& next) {
  const std::size_t of_own_stream = order_.num_marks;  // which no step leaves
  backend_.signal(of_own_stream, kOwnStream);
  backend_.wait(of_own_stream, next.stream_id());
  for (const StepIndex awaited : order_.waits_of(next)) {
    backend_.wait(order_.steps[awaited].mark, next.stream_id());
  }
  execute(next);
  if (next.mark != IssueStep::kNoMark) {
    backend_.signal(next.mark, next.stream_id());
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
