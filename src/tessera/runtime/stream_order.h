#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/program/program.h"
#include "tessera/runtime/bound_program.h"
#include "tessera/runtime/instruction_run.h"
#include "tessera/runtime/stream_thread.h"

namespace tessera {

// Runs the instructions of a step's streams, each after those that it waits for. Stream 0 is the
// calling thread. An instruction of a second stream runs once the calling thread has come to its
// place in the program: on a thread of its own, or by a backend that orders streams itself.
class StreamOrder {
 public:
  // Borrows all three for its life. Errors: kUnsupported for more than two streams.
  StreamOrder(const Program& program, BoundProgram& bound, Backend& backend);

  ~StreamOrder() = default;
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  bool has_other_stream() const { return !others_.empty(); }

  // Whether the other stream is the backend's: then it has no thread.
  bool is_by_backend() const { return is_by_backend_; }

  // No event has happened in this step.
  void start_step();

  // Runs the step's next instruction, or lets the other stream do so. Errors: as
  // BoundProgram::execute(); those of the other stream's thread, where this one waits for it.
  void run(const InstructionRun& next);

  // Returns when the other stream's thread has done all of the step. Errors: its.
  void end_step();

  // Drops what the other stream's thread has not begun; it runs nothing any more.
  void stop();

  // How long the calling thread waited for the other stream's in the last step.
  double waited_seconds() const { return waited_seconds_; }

 private:
  static constexpr std::size_t kOfOwnStream = std::numeric_limits<std::size_t>::max();

  void add_event(EventId event);

  // Into signalled_, in the slot of the run's call; kOfOwnStream where the other never signals it.
  std::size_t signal_of(const InstructionRun& run, EventId event) const;

  void issue(const InstructionRun& next, const Instruction& instruction);
  void wait_for_events(const InstructionRun& next, const Instruction& instruction);
  void wait_for(StreamThread::Ticket ticket);

  const Program& program_;
  BoundProgram& bound_;
  Backend& backend_;
  std::vector<InstructionRun> others_;     // of the other stream, in order
  std::vector<std::size_t> first_signal_;  // by event, into signalled_; one for each slot
  // The last signals from the other stream.
  std::vector<StreamThread::Ticket> signalled_;
  bool is_by_backend_ = false;
  double waited_seconds_ = 0;
  std::unique_ptr<StreamThread> thread_;  // null where it has none; ends before what it uses
};

}  // namespace tessera
