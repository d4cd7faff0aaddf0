#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tessera/program/issue_order.h"
#include "tessera/runtime/lane.h"
#include "tessera/runtime/step_stamps.h"

namespace tessera {

class Channel;  // comm/channel.h
class World;    // comm/communicator.h

// An item of another lane, by its place in the step: what must have ended before an item begins.
struct Awaited {
  std::size_t lane = 0;
  std::size_t item = 0;
};

// A tensor that goes through a channel in each step.
struct Transfer {
  const IssueStep* step = nullptr;
  Channel* channel = nullptr;  // null where nothing moves in this call
  std::span<std::byte> memory;
  std::vector<Awaited> after;
  std::function<std::string()> place;  // for errors
};

// The transfers of a stream, in order.
struct TransferLane {
  Lane* lane = nullptr;
  std::vector<Transfer> transfers;
};

// A thread that moves the transfers of all streams of nothing else: it begins each once it is
// issued and what it comes after has ended, and sleeps while no channel can go on.
class TransferThread {
 public:
  // What a transfer comes after is asked with `has_ended`, in the step that its lane is in. Borrows
  // the world, its bell, which every lane of the step must ring, the lanes, the channels and the
  // stamps.
  using HasEnded = std::function<bool(const Awaited& awaited, Lane::Ticket step)>;

  // What a transfer fails with is told to `note` first.
  using Note = std::function<void(const std::exception_ptr& error)>;

  TransferThread(World& world,
                 std::vector<TransferLane> lanes,
                 HasEnded has_ended,
                 Note note,
                 StepStamps& stamps);

  // Stops the lanes, and takes back the transfers under way: none uses its memory any more.
  ~TransferThread();

  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

 private:
  // How far a lane is.
  struct Progress {
    Lane::Ticket step = 0;
    std::size_t item = 0;
    bool under_way = false;
    bool failed = false;
    std::int64_t begin = 0;  // of the transfer, for its stamp
  };

  void loop();
  bool go_on_with_all();
  bool go_on(std::size_t lane);
  bool move(const Transfer& transfer, Progress& progress);
  bool advance(const Transfer& transfer, Progress& progress) const;
  void fail(std::size_t lane, const std::exception_ptr& error);
  void withdraw_all();
  std::chrono::microseconds longest_sleep() const;
  bool all_stopped() const;

  World& world_;
  std::vector<TransferLane> lanes_;
  std::vector<Progress> progress_;  // by lane
  HasEnded has_ended_;
  Note note_;
  StepStamps& stamps_;
  std::jthread thread_;
};

}  // namespace tessera
