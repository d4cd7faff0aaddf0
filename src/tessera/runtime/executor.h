#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/program/program.h"
#include "tessera/runtime/stream_thread.h"

namespace tessera {

// Runs a program's step on a backend. The arena is allocated once, and the views of every segment
// are bound once, however many calls there are; a step allocates nothing. What a backend can record
// it records in the second step, whose arguments are those of all that follow. Stream 0 is the
// calling thread. An instruction of a second stream runs once the calling thread has come to its
// place in the program: on a thread of the executor, or by a backend that orders streams itself.
class Executor {
 public:
  // Borrows both for its life. Errors: kOutOfMemory; kUnsupported for more than two streams;
  // kInternal where the backend needs more workspace than the program was compiled with.
  Executor(const Program& program, Backend& backend);

  // In an arena that it shares with executors of other programs, whose states must lie at the same
  // places: these stay, everything else is lost when another one runs. Errors: kInternal where
  // program.arena_bytes are more than `arena_bytes`, those of the arena.
  Executor(const Program& program,
           Backend& backend,
           std::shared_ptr<Arena> arena,
           std::int64_t arena_bytes);

  // Executes the call list once, and returns when all streams have.
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

  // Seconds by op over one step, each instruction timed in its place, all on the calling thread;
  // longest first.
  std::vector<std::pair<std::string, double>> profile_step();

  // How long the calling thread waited for the other stream's thread in the last step; 0 where the
  // backend orders streams.
  double waited_seconds() const { return waited_seconds_; }

  // The host's memory of a bound tensor; `instance` is the microbatch of an input. The tensor is
  // contiguous. Inputs and scalars reach the device when a step begins, outputs the host when it
  // has ended; states by the two functions below alone.
  std::span<std::byte> bytes(const Binding& binding, std::int64_t instance = 0);

  // Draws elements [begin, begin + count) of a state on the device.
  void draw(const Binding& state, std::int64_t begin, std::int64_t count, const Initial& initial);

  // Brings a state from the host's memory to the device's, and `count` of its elements from `first`
  // on back; the second gives where they are. Nothing is moved where the two are one.
  // Errors: kDeviceError.
  void state_to_device(const Binding& state);
  std::span<std::byte> state_to_host(const Binding& state, std::int64_t first, std::int64_t count);

  // Convenience for scalars.
  void set_scalar(std::string_view scalar, float value);
  float output_scalar(std::string_view output);

  // How many recordings the last step replayed: 0 where the backend records nothing.
  std::size_t num_replayed() const { return num_replayed_; }

  const Program& program() const { return program_; }

  std::int64_t memory_bytes() const { return program_.arena_bytes; }

  // Whether the host's side of the arena is a copy of the device's.
  bool has_mirror() const { return arena_->has_mirror(); }

 private:
  struct Bound {
    const Op* op;
    std::uint32_t first_view;
    std::uint32_t num_operands;
    std::uint32_t num_results;
    std::uint32_t first_moving;
    std::uint32_t num_moving;
    std::span<std::byte> workspace;
    const Instruction* instruction;
  };

  // A view of a buffer with several instances: each call moves it to its own.
  struct Moving {
    std::uint32_t view;
    std::byte* first;  // in instance 0
    std::int64_t stride;
  };

  // An instruction of one call.
  struct Item {
    const Call* call = nullptr;
    std::size_t index = 0;  // of the instruction in its segment
  };

  // Instructions, one behind the other, that the backend records as one, of both streams where it
  // orders them and else of stream 0; or those that it does not record.
  struct Batch {
    std::vector<Item> items;
    bool is_recorded = false;
    bool writes_states = false;
    std::unique_ptr<Recording> recording = nullptr;  // from the second step on
  };

  // A stretch of the arena that is copied between host and device.
  struct Stretch {
    std::int64_t offset;
    std::int64_t bytes;
  };

  std::int64_t place_of(const TensorRef& tensor, std::int64_t instance) const;
  View bind(const TensorRef& tensor, std::int64_t instance);
  std::vector<Stretch> stretches_of(std::span<const Binding> bindings) const;
  void run_all();
  std::vector<Bound> bind_segment(const Segment& segment);
  void require_workspace(const Bound& bound);
  void find_first_write();
  void require_time() const;
  void start_stream();
  void plan_batches();
  void run_calls();
  void run_batches();
  void run_items(const Call& call, std::size_t begin, std::size_t end);
  void run_item(const Item& item);
  void issue(const Item& item);
  void wait_for_events(const Bound& bound);
  void wait_for(StreamThread::Ticket ticket);
  void run_instruction(const Item& item);
  void execute(const Call& call, const Bound& bound);

  const Program& program_;
  Backend& backend_;
  std::shared_ptr<Arena> arena_;  // of all executors that run in it
  std::vector<View> views_;
  std::vector<Moving> moving_;
  std::vector<std::vector<Bound>> segments_;
  // Where the device has memory of its own: what each step takes there, and brings back.
  std::vector<Stretch> taken_;
  std::vector<Stretch> brought_;
  std::vector<Batch> batches_;  // none where the backend records nothing
  bool has_run_ = false;
  std::size_t num_replayed_ = 0;
  double waited_seconds_ = 0;
  bool failed_ = false;
  bool (*is_over_)() = nullptr;
  Item first_write_ = {};  // of a parameter or an optimizer state; no call: there is none
  std::atomic<bool> writes_states_ = false;  // from there on to the end of the step
  // By event, its last signal from the other stream.
  std::vector<StreamThread::Ticket> signalled_;
  bool has_ordered_streams_ = false;      // by the backend
  std::vector<Item> items_;               // the other stream's, in order
  std::unique_ptr<StreamThread> stream_;  // null where it has none; ends before what it uses
};

}  // namespace tessera
