#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/ir/ids.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/program.h"
#include "tessera/runtime/bound_program.h"
#include "tessera/runtime/lane.h"
#include "tessera/runtime/step_stamps.h"
#include "tessera/runtime/stream_thread.h"
#include "tessera/runtime/transfer_thread.h"

namespace tessera {

// The stream of the thread that runs a step.
inline constexpr StreamId kOwnStream = {0};

// Runs the steps of an order, each after those that it waits for. Stream 0 is the calling thread.
// One of another stream runs once the calling thread has come to its place in the order: on a
// thread of the stream's own, on the one that moves the transfers of all streams of nothing but
// sends and receives, or by a backend that orders streams itself.
class StreamOrder {
 public:
  // Borrows all of them for its life; the order is the program's.
  StreamOrder(const Program& program,
              const IssueOrder& order,
              BoundProgram& bound,
              Backend& backend);

  ~StreamOrder() = default;
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  bool has_other_streams() const { return has_other_streams_; }

  // Whether the other streams are the backend's: then they have no threads.
  bool is_by_backend() const { return is_by_backend_; }

  // The first of the order is next.
  void start_step();

  // Runs the next of the order, or lets its stream do so. Errors: as BoundProgram::execute();
  // those of another stream's thread, where this one waits for it.
  void run(const IssueStep& next);

  // Returns when the other streams have done all of the step. Errors: theirs.
  void end_step();

  // Drops what the other streams have not begun; they run nothing any more.
  void stop();

  // What another stream failed with first; null while none has. What the calling thread fails with
  // may be a consequence of it.
  std::exception_ptr first_failure();

  // How long the calling thread waited for the others in the last step.
  double waited_seconds() const { return waited_seconds_; }

  StepStamps& stamps() { return stamps_; }

  const StepStamps& stamps() const { return stamps_; }

 private:
  // A stream other than the first.
  struct Stream {
    std::vector<StepIndex> steps;  // in order
    std::unique_ptr<Lane> lane;
    Lane::Ticket before = 0;  // the last item of the steps before this one
    bool is_of_transfers = false;
  };

  void make_channels();
  void start_threads();
  void make_lanes();
  void note_failure(const std::exception_ptr& error);
  TransferLane transfers_of(std::size_t lane) const;
  bool is_of_transfers(const Stream& stream) const;
  bool has_ended(const Awaited& awaited, Lane::Ticket step) const;
  void run_item(std::size_t lane, std::size_t item, Lane::Ticket step);
  void execute(const IssueStep& step);

  // Of one that is on another stream than the first.
  const Stream& stream_of(const IssueStep& step) const { return streams_[step.stream - 1U]; }

  // The number of a step's item where `before` items were before it.
  static Lane::Ticket ticket(const IssueStep& step, Lane::Ticket before) {
    return before + step.item + 1;
  }

  void run_own(const IssueStep& next);
  void enqueue(const IssueStep& next);
  void wait_for(const Lane& lane, Lane::Ticket ticket);

  const Program& program_;
  const IssueOrder& order_;
  BoundProgram& bound_;
  Backend& backend_;
  StepStamps stamps_;
  std::vector<Stream> streams_;  // by index in the program, less one
  std::mutex mutex_;             // guards what follows
  std::exception_ptr first_failure_;
  bool has_other_streams_ = false;
  bool is_by_backend_ = false;
  bool has_channels_ = false;
  double waited_seconds_ = 0;
  // These end before what they use.
  std::vector<std::unique_ptr<StreamThread>> threads_;
  std::unique_ptr<TransferThread> transfers_;
};

}  // namespace tessera
