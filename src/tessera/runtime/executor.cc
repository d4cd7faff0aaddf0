#include "tessera/runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>

#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/progress.h"
#include "tessera/ops/op.h"
#include "tessera/program/channels.h"

namespace tessera {

namespace {

// Whether the instruction waits for other ranks.
bool talks(const Instruction& instruction) {
  return !collectives(*instruction.op, operand_types(instruction)).empty();
}

// By segment and instruction, whether the calling thread waits for other ranks in it; empty where
// `program` has no transfers, or threads do not order its streams and do its work.
std::vector<std::vector<bool>> find_talks(const Program& program, bool is_by_threads) {
  std::vector<std::vector<bool>> talk;
  if (!is_by_threads || channels_of(program).empty()) {
    return talk;
  }
  for (const Segment& segment : program.segments) {
    std::vector<bool>& of_segment = talk.emplace_back();
    for (const Instruction& instruction : segment.instructions) {
      of_segment.push_back(instruction.stream == kOwnStream && talks(instruction));
    }
  }
  return talk;
}

// Of what a checkpoint holds: accumulators are written all the time.
InstructionRun first_state_write(const Program& program) {
  const auto is_saved = [&](const TensorRef& tensor) {
    const Buffer& buffer = program[tensor.buffer];
    return buffer.persistent &&
           (buffer.category == Category::kParameter || buffer.category == Category::kOptimizer);
  };
  InstructionRun first;
  for_each_run(program, [&](const InstructionRun& run, const Instruction& instruction) {
    if (first.call == nullptr && std::ranges::any_of(instruction.results, is_saved)) {
      first = run;
    }
  });
  return first;
}

std::vector<std::string> call_names(const Program& program) {
  std::vector<std::string> names;
  for (const Call& call : program.calls) {
    names.push_back(format("{} of microbatch {}", program[call.segment].name, call.microbatch));
  }
  return names;
}

}  // namespace

Executor::Executor(const Program& program, Backend& backend)
    : Executor(program, backend, backend.allocate(program.arena_bytes), program.arena_bytes) {}

Executor::Executor(const Program& program,
                   Backend& backend,
                   std::shared_ptr<Arena> arena,
                   std::int64_t arena_bytes)
    : program_(program),
      backend_(backend),
      memory_(program, std::move(arena), arena_bytes),
      bound_(program, memory_, backend),
      first_write_(first_state_write(program)),
      streams_(program, bound_, backend) {
  batches_ = plan_batches(program, backend, streams_.is_by_backend(), first_write_);
  if (World* const world = backend.world()) {
    progress_ = &world->progress();
    first_call_ = progress_->add_calls(call_names(program));
    talks_ = find_talks(program, !backend.orders_streams() && !memory_.has_mirror());
  }
}

void Executor::run_step() {
  TESSERA_CHECK(!failed_, "the streams of this program ended with an error in an earlier step");
  memory_.inputs_to_device();
  run_all();
  memory_.outputs_to_host();
  writes_states_.store(false, std::memory_order_release);
}

void Executor::run_all() {
  if (!streams_.has_other_streams() && !backend_.orders_streams()) {
    run_calls();
    backend_.synchronize();
    has_run_ = true;
    return;
  }
  try {
    streams_.start_step();
    run_calls();
    streams_.end_step();
    backend_.synchronize();  // what kernels failed with comes out here, and ends the others too
    has_run_ = true;
  } catch (const std::exception& error) {
    failed_ = true;
    streams_.stop();
    if (const std::exception_ptr first = streams_.first_failure()) {
      backend_.abort(to_error(first).what());
      rethrow_copy(first);
    }
    backend_.abort(error.what());
    throw;
  }
}

void Executor::run_calls() {
  talk_seconds_ = 0;
  if (!batches_.empty()) {
    run_batches();
    return;
  }
  for (const Call& call : program_.calls) {
    require_time();
    const std::size_t end = program_[call.segment].instructions.size();
    if (&call != first_write_.call) {
      run_range(call, 0, end);
      continue;
    }
    run_range(call, 0, first_write_.index);
    writes_states_.store(true, std::memory_order_release);
    run_range(call, first_write_.index, end);
  }
}

void Executor::require_time() const {
  TESSERA_REQUIRE(is_over_ == nullptr || !is_over_() || !states_are_whole(),
                  ErrorCode::kTimeout,
                  "the step under way is given up, since there is no time to end it");
}

void Executor::run_range(const Call& call, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    run({.call = &call, .index = i});
  }
}

void Executor::run_batches() {
  num_replayed_ = 0;
  for (StepBatch& batch : batches_) {
    if (batch.writes_states) {
      writes_states_.store(true, std::memory_order_release);
    }
    const auto run_each = [&] {
      for (const InstructionRun& next : batch.runs) {
        run(next);
      }
    };
    if (!batch.is_recorded || !has_run_) {
      run_each();
      continue;
    }
    if (!batch.recording) {
      batch.recording = backend_.record(run_each);
    }
    batch.recording->replay();
    ++num_replayed_;
    if (progress_ != nullptr) {
      progress_->finish_instruction();
    }
  }
}

void Executor::run(const InstructionRun& next) {
  if (progress_ != nullptr && next.index == 0) {
    progress_->start_call(first_call_ +
                          static_cast<std::size_t>(next.call - program_.calls.data()));
  }
  if (talks_itself(next)) {
    const auto start = std::chrono::steady_clock::now();
    const double waited_before = streams_.waited_seconds();
    streams_.run(next);
    talk_seconds_ += seconds_since(start) - (streams_.waited_seconds() - waited_before);
  } else {
    streams_.run(next);
  }
  if (progress_ != nullptr && instruction_of(program_, next).stream == kOwnStream) {
    progress_->finish_instruction();
  }
  // The first step loads kernels, and a driver that does may hold up other ranks of the process:
  // none of them must be waited for meanwhile.
  if (!has_run_ && backend_.orders_streams() && talks(instruction_of(program_, next))) {
    backend_.synchronize();
  }
}

bool Executor::talks_itself(const InstructionRun& next) const {
  return !talks_.empty() && talks_[next.call->segment.at()][next.index];
}

std::vector<std::pair<std::string, double>> Executor::profile_step() {
  const auto channels = channels_of(program_);
  TESSERA_REQUIRE(channels.empty(),
                  ErrorCode::kUnsupported,
                  "{}: the ops of a step with transfers are not timed one by one, since ranks "
                  "would wait for each other",
                  info(*channels.begin()->second->op).name);
  memory_.inputs_to_device();
  std::map<std::string, double> seconds;
  for_each_run(program_, [&](const InstructionRun& run, const Instruction& instruction) {
    const auto start = std::chrono::steady_clock::now();
    bound_.execute(run);
    backend_.synchronize();
    seconds[info(*instruction.op).name] += seconds_since(start);
  });
  memory_.outputs_to_host();
  std::vector<std::pair<std::string, double>> rows(seconds.begin(), seconds.end());
  std::stable_sort(
      rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return rows;
}

void Executor::draw(const Binding& state,
                    std::int64_t begin,
                    std::int64_t count,
                    const Initial& initial) {
  backend_.draw(initial, memory_.elements(state, begin, count));
}

void Executor::set_scalar(std::string_view scalar, float value) {
  *reinterpret_cast<float*>(bytes(find_binding(program_.scalars, scalar)).data()) = value;
}

float Executor::output_scalar(std::string_view output, std::int64_t microbatch) {
  const Binding& binding = find_binding(program_.outputs, output);
  return *reinterpret_cast<const float*>(bytes(binding, microbatch).data());
}

}  // namespace tessera
