#include "tessera/runtime/transfer_thread.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/bell.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/communicator.h"

namespace tessera {
namespace {

// While nothing is under way, the bell rings before there is anything to do.
constexpr std::chrono::milliseconds kIdle(100);

}  // namespace

TransferThread::TransferThread(World& world,
                               std::vector<TransferLane> lanes,
                               HasEnded has_ended,
                               Note note,
                               StepStamps& stamps)
    : world_(world),
      lanes_(std::move(lanes)),
      progress_(lanes_.size()),
      has_ended_(std::move(has_ended)),
      note_(std::move(note)),
      stamps_(stamps),
      thread_([this] { loop(); }) {}

TransferThread::~TransferThread() {
  for (const TransferLane& lane : lanes_) {
    lane.lane->stop();
  }
}

void TransferThread::loop() {
  Bell& bell = world_.bell();
  try {
    for (;;) {
      const std::uint32_t seen = bell.rings();
      if (all_stopped()) {
        break;
      }
      const bool went_on = go_on_with_all();
      world_.exchange_progress();
      if (!went_on) {
        bell.sleep(seen, longest_sleep());
      }
    }
  } catch (...) {  // what the ranks tell each other cannot be told any more
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      fail(lane, std::current_exception());
    }
  }
  withdraw_all();
}

// Whether any transfer ended.
bool TransferThread::go_on_with_all() {
  bool went_on = false;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    went_on = go_on(lane) || went_on;
  }
  return went_on;
}

void TransferThread::withdraw_all() {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (progress_[lane].under_way) {
      lanes_[lane].transfers[progress_[lane].item].channel->withdraw();
    }
  }
}

void TransferThread::fail(std::size_t lane, const std::exception_ptr& error) {
  if (!progress_[lane].failed) {
    progress_[lane].failed = true;
    note_(error);
    lanes_[lane].lane->fail(error);
  }
}

std::chrono::microseconds TransferThread::longest_sleep() const {
  using Microseconds = std::chrono::microseconds;
  Microseconds longest = kIdle;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (!progress_[lane].under_way) {
      continue;
    }
    longest = std::min(longest, world_.longest_sleep());
    if (const auto due = lanes_[lane].transfers[progress_[lane].item].channel->due()) {
      const auto left = std::chrono::ceil<Microseconds>(*due - Channel::Clock::now());
      longest = std::clamp(left, Microseconds(0), longest);
    }
  }
  return longest;
}

bool TransferThread::all_stopped() const {
  return std::ranges::all_of(lanes_, [](const TransferLane& lane) { return lane.lane->stopped(); });
}

// Whether a transfer of the lane ended.
bool TransferThread::go_on(std::size_t lane) {
  Progress& progress = progress_[lane];
  Lane& items = *lanes_[lane].lane;
  const std::vector<Transfer>& transfers = lanes_[lane].transfers;
  const auto num_items = static_cast<Lane::Ticket>(transfers.size());
  const auto ticket = progress.step * num_items + static_cast<Lane::Ticket>(progress.item) + 1;
  // In this order: a lane that stops seems to issue one more.
  if (progress.failed || !items.is_issued(ticket) || items.stopped()) {
    return false;
  }
  try {
    if (!move(transfers[progress.item], progress)) {
      return false;
    }
  } catch (...) {
    progress.under_way = false;
    fail(lane, std::current_exception());
    return false;
  }
  progress.under_way = false;
  if (++progress.item == transfers.size()) {
    progress.item = 0;
    ++progress.step;
  }
  items.finish();
  return true;
}

// Whether it is done.
bool TransferThread::move(const Transfer& transfer, Progress& progress) {
  if (!progress.under_way) {
    const bool may_begin = std::ranges::all_of(
        transfer.after, [&](const Awaited& awaited) { return has_ended_(awaited, progress.step); });
    if (!may_begin) {
      return false;
    }
    progress.begin = stamps_.is_on() ? StepStamps::now() : 0;
  }
  const bool is_done = transfer.channel == nullptr || advance(transfer, progress);
  if (is_done && stamps_.is_on()) {
    stamps_.add(*transfer.step, progress.begin);
  }
  return is_done;
}

bool TransferThread::advance(const Transfer& transfer, Progress& progress) const {
  return with_context(transfer.place, [&] {
    if (!progress.under_way) {
      transfer.channel->begin(transfer.memory);
      progress.under_way = true;
    }
    return transfer.channel->advance();
  });
}

}  // namespace tessera
