#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/program/program.h"
#include "tessera/runtime/bound_program.h"
#include "tessera/runtime/instruction_run.h"
#include "tessera/runtime/lane.h"
#include "tessera/runtime/stream_thread.h"
#include "tessera/runtime/transfer_thread.h"

namespace tessera {

// Runs the instructions of a step's streams, each after those that it waits for. Stream 0 is the
// calling thread. An instruction of another stream runs once the calling thread has come to its
// place in the program: on a thread of the stream's own, on the one that moves the transfers of all
// streams of nothing but sends and receives, or by a backend that orders streams itself.
class StreamOrder {
 public:
  // Borrows all three for its life.
  StreamOrder(const Program& program, BoundProgram& bound, Backend& backend);

  ~StreamOrder() = default;
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  bool has_other_streams() const { return has_other_streams_; }

  // Whether the other streams are the backend's: then they have no threads.
  bool is_by_backend() const { return is_by_backend_; }

  // No event has happened in this step.
  void start_step();

  // Runs the step's next instruction, or lets its stream do so. Errors: as BoundProgram::execute();
  // those of another stream's thread, where this one waits for it.
  void run(const InstructionRun& next);

  // Returns when the other streams have done all of the step. Errors: theirs.
  void end_step();

  // Drops what the other streams have not begun; they run nothing any more.
  void stop();

  // What another stream failed with first; null while none has. What the calling thread fails with
  // may be a consequence of it.
  std::exception_ptr first_failure();

  // How long the calling thread waited for the others in the last step.
  double waited_seconds() const { return waited_seconds_; }

 private:
  static constexpr std::size_t kOfOwnStream = std::numeric_limits<std::size_t>::max();

  // What another stream has done last.
  struct Signal {
    std::size_t lane = 0;
    Lane::Ticket ticket = 0;
  };

  // An instruction of another stream in a step, and what of third streams it comes after.
  struct Item {
    InstructionRun run;
    std::vector<Awaited> after;
  };

  // A stream other than the first.
  struct Stream {
    std::vector<Item> items;  // in order
    std::unique_ptr<Lane> lane;
    bool is_of_transfers = false;
  };

  void make_channels();
  void find_items();
  void add_event(EventId event);
  std::vector<Awaited> awaited_by(const InstructionRun& run,
                                  const Instruction& instruction,
                                  const std::vector<Awaited>& signalled) const;
  void start_threads();
  void make_lanes();
  void note_failure(const std::exception_ptr& error);
  TransferLane transfers_of(std::size_t lane) const;
  bool is_of_transfers(const Stream& stream) const;
  bool has_ended(const Awaited& awaited, Lane::Ticket step) const;
  void run_item(std::size_t lane, std::size_t item, Lane::Ticket step);

  // Into signalled_, in the slot of the run's call; kOfOwnStream where no other stream signals it.
  std::size_t signal_of(const InstructionRun& run, EventId event) const;

  void issue(const InstructionRun& next, const Instruction& instruction);
  void enqueue(const InstructionRun& next, const Instruction& instruction);
  void wait_for_events(const InstructionRun& next, const Instruction& instruction);
  void wait_for(const Lane& lane, Lane::Ticket ticket);

  const Program& program_;
  BoundProgram& bound_;
  Backend& backend_;
  std::vector<Stream> streams_;            // by index in the program, less one
  std::vector<std::size_t> first_signal_;  // by event, into signalled_; one for each slot
  std::vector<Signal> signalled_;          // the last ones
  std::mutex mutex_;                       // guards what follows
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
