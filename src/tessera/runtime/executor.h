#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/program.h"
#include "tessera/runtime/bound_program.h"
#include "tessera/runtime/program_memory.h"
#include "tessera/runtime/step_batches.h"
#include "tessera/runtime/step_stamps.h"
#include "tessera/runtime/stream_order.h"

namespace tessera {

class Progress;  // comm/progress.h

// Runs a program's step on a backend, in its issue_order(). The arena is allocated once, and the
// views of every segment are bound once; a step allocates nothing. What a backend can record it
// records in the second step, whose arguments are those of all that follow. StreamOrder says how
// several streams run.
class Executor {
 public:
  // Borrows both for its life; of a program that has nothing in a file. Errors: kOutOfMemory;
  // kInternal where the backend needs more workspace than the program was compiled with.
  Executor(const Program& program, Backend& backend);

  // In arenas that it shares with executors of other programs, whose states must lie at the same
  // places: these stay, everything else is lost when another one runs. Errors: kInternal where they
  // are too small.
  Executor(const Program& program, Backend& backend, ProgramArenas arenas);

  // Executes the order once, and returns when all streams have.
  // Errors: what kernels throw, with segment, microbatch and instruction as context; of another
  // stream, where this one next waits for it. An error ends all streams: work that has not begun is
  // dropped, what waits for other ranks is aborted, and a program of several streams runs no more.
  void run_step();

  // From now on run_step() gives up between two calls where `is_over` says so: with kTimeout, and
  // whole states unless the update has begun. Null: never.
  void give_up_where(bool (*is_over)()) { is_over_ = is_over; }

  // Whether parameters and optimizer states are those of the last step that ended: the update of
  // one that failed had not begun to write them. Any thread may ask.
  bool states_are_whole() const { return !writes_states_.load(std::memory_order_acquire); }

  // From now on run_step() stamps what it does: between two steps.
  void stamp_steps() { streams_.stamps().turn_on(); }

  // No longer, and those of the last step go.
  void stop_stamps() { streams_.stamps().turn_off(); }

  // Those of the last step. What was replayed as one has the stamps of that; in the step that
  // records it, those of recording.
  const StepStamps& stamps() const { return streams_.stamps(); }

  // Seconds by op over one step, each instruction timed in its place, all on the calling thread;
  // longest first. Errors: kUnsupported for a program with transfers.
  std::vector<std::pair<std::string, double>> profile_step();

  // How long the calling thread waited for other streams' threads in the last step; 0 where the
  // backend orders streams.
  double waited_seconds() const { return streams_.waited_seconds(); }

  // The same with what it waited for other ranks in its own collectives, of a program with
  // transfers whose streams are threads. Nothing of other programs, and of a device, whose work no
  // thread waits for in a step.
  std::optional<double> waited_for_ranks_seconds() const {
    return talks_.empty() ? std::nullopt : std::optional(streams_.waited_seconds() + talk_seconds_);
  }

  // The host's memory of a bound tensor; `slot` is the microbatch of an input, or of an output that
  // each microbatch has. The tensor is
  // contiguous. Inputs and scalars reach the device when a step begins, outputs the host when it
  // has ended; states by the two functions below alone.
  std::span<std::byte> bytes(const Binding& binding, std::int64_t slot = 0) {
    return memory_.bytes(binding, slot);
  }

  // Draws elements [begin, begin + count) of a state on the device.
  void draw(const Binding& state, std::int64_t begin, std::int64_t count, const Initial& initial);

  // Brings a state from the host's memory to the device's, and `count` of its elements from `first`
  // on back; the second gives where they are. Nothing is moved where the two are one.
  // Errors: kDeviceError.
  void state_to_device(const Binding& state) { memory_.state_to_device(state); }

  std::span<std::byte> state_to_host(const Binding& state, std::int64_t first, std::int64_t count) {
    return memory_.state_to_host(state, first, count);
  }

  // What people should know of how it reads and writes its file; nothing where all is as it should
  // be, or nothing lies in one.
  std::vector<std::string> file_notes() const;

  // The file that a state lies in, by which it can be opened while this lives, and where the state
  // begins there; none where it lies in memory.
  struct FilePlace {
    std::filesystem::path path;
    std::int64_t file_bytes = 0;
    std::int64_t offset = 0;
  };

  std::optional<FilePlace> file_of(const Binding& state) const;

  // Brings what of a state in a file was drawn or written by the host to the disk: `bytes` of
  // bytes(state). Nothing of other states. Errors: kDeviceError.
  void to_file(const Binding& state, std::span<const std::byte> bytes) const {
    memory_.to_file(state, bytes);
  }

  // Convenience for scalars.
  void set_scalar(std::string_view scalar, float value);
  float output_scalar(std::string_view output, std::int64_t microbatch = 0);

  // How many recordings the last step replayed: 0 where the backend records nothing.
  std::size_t num_replayed() const { return num_replayed_; }

  const Program& program() const { return program_; }

  const IssueOrder& order() const { return order_; }

  std::int64_t memory_bytes() const { return program_.arena_bytes; }

  // Whether the host's side of the arena is a copy of the device's.
  bool has_mirror() const { return memory_.has_mirror(); }

 private:
  void run_all();
  void require_time() const;
  void run_order();
  void run_batches();
  void replay(StepBatch& batch);
  void run(const IssueStep& next);

  const Program& program_;
  const IssueOrder order_;
  Backend& backend_;
  ProgramMemory memory_;
  BoundProgram bound_;
  std::vector<StepBatch> batches_;  // none where the backend records nothing
  bool has_run_ = false;
  // By place, of a program with transfers: whether the calling thread waits for other ranks in it.
  std::vector<bool> talks_;
  double talk_seconds_ = 0;  // that it did in the last step
  std::size_t num_replayed_ = 0;
  bool failed_ = false;
  bool (*is_over_)() = nullptr;
  Progress* progress_ =
      nullptr;                  // of the rank, for others that wait for it; null where it is alone
  std::size_t first_call_ = 0;  // by which it knows the program's
  std::optional<StepIndex> first_write_;     // of a parameter or an optimizer state
  std::atomic<bool> writes_states_ = false;  // from there on to the end of the step
  StreamOrder streams_;                      // ends before what its thread uses
};

}  // namespace tessera
