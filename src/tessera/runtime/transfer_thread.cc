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

TransferThread::TransferThread(World& world, std::vector<TransferLane> lanes, HasEnded has_ended)
    : world_(world),
      lanes_(std::move(lanes)),
      progress_(lanes_.size()),
      has_ended_(std::move(has_ended)),
      thread_([this] { loop(); }) {}

TransferThread::~TransferThread() {
  for (const TransferLane& lane : lanes_) {
    lane.lane->stop();
  }
}

void TransferThread::loop() {
  Bell& bell = world_.bell();
  while (!all_stopped()) {
    const std::uint32_t seen = bell.rings();
    bool went_on = false;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      went_on = go_on(lane) || went_on;
    }
    world_.exchange_progress();
    if (!went_on) {
      bell.sleep(seen, longest_sleep());
    }
  }
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (progress_[lane].under_way) {
      lanes_[lane].transfers[progress_[lane].item].channel->withdraw();
    }
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
  if (progress.failed || items.stopped() || !items.is_issued(ticket)) {
    return false;
  }
  const Transfer& transfer = transfers[progress.item];
  try {
    if (!with_context(transfer.place, [&] { return move(transfer, progress); })) {
      return false;
    }
  } catch (...) {
    progress.failed = true;
    progress.under_way = false;
    items.fail();
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
bool TransferThread::move(const Transfer& transfer, Progress& progress) const {
  if (!progress.under_way) {
    if (!may_begin(transfer, progress.step)) {
      return false;
    }
    transfer.channel->begin(transfer.memory);
    progress.under_way = true;
  }
  return transfer.channel->advance();
}

bool TransferThread::may_begin(const Transfer& transfer, Lane::Ticket step) const {
  return std::ranges::all_of(transfer.after,
                             [&](const Awaited& awaited) { return has_ended_(awaited, step); });
}

}  // namespace tessera
