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
#include "tessera/program/operand_types.h"

namespace tessera {

namespace {

// Whether the instruction waits for other ranks.
bool talks(const Instruction& instruction) {
  return !collectives(*instruction.op, operand_types(instruction)).empty();
}

// By place, whether the calling thread waits for other ranks in it; empty where `program` has no
// transfers, or threads do not order its streams and do its work.
std::vector<bool> find_talks(const Program& program, bool is_by_threads) {
  std::vector<bool> talk;
  if (!is_by_threads || channels_of(program).empty()) {
    return talk;
  }
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      talk.push_back(instruction.stream == kOwnStream && talks(instruction));
    }
  }
  return talk;
}

// Of what a checkpoint holds: accumulators are written all the time.
std::optional<StepIndex> first_state_write(const Program& program, const IssueOrder& order) {
  const auto is_saved = [&](const TensorRef& tensor) {
    const Buffer& buffer = program[tensor.buffer];
    return buffer.persistent &&
           (buffer.category == Category::kParameter || buffer.category == Category::kOptimizer);
  };
  const auto first = std::ranges::find_if(order.steps, [&](const IssueStep& step) {
    return std::ranges::any_of(instruction_of(program, step).results, is_saved);
  });
  return first == order.steps.end() ? std::nullopt : std::optional(order.index_of(*first));
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
    : Executor(
          program,
          backend,
          {.device = backend.allocate(program.arena_bytes),
           .device_bytes = program.arena_bytes,
           .host = program.host_bytes > 0 ? backend.allocate_host(program.host_bytes) : nullptr}) {}

Executor::Executor(const Program& program, Backend& backend, ProgramArenas arenas)
    : program_(program),
      order_(issue_order(program)),
      backend_(backend),
      memory_(program, std::move(arenas)),
      bound_(program, memory_, backend),
      first_write_(first_state_write(program, order_)),
      streams_(program, order_, bound_, backend) {
  batches_ = plan_batches(program, order_, backend, streams_.is_by_backend(), first_write_);
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
    run_order();
    backend_.synchronize();
    has_run_ = true;
    return;
  }
  try {
    streams_.start_step();
    run_order();
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

void Executor::run_order() {
  talk_seconds_ = 0;
  streams_.stamps().clear();
  if (!batches_.empty()) {
    run_batches();
    return;
  }
  for (const IssueStep& step : order_.steps) {
    if (step.instruction == 0) {
      require_time();
    }
    if (order_.index_of(step) == first_write_) {
      writes_states_.store(true, std::memory_order_release);
    }
    run(step);
  }
}

void Executor::require_time() const {
  TESSERA_REQUIRE(is_over_ == nullptr || !is_over_() || !states_are_whole(),
                  ErrorCode::kTimeout,
                  "the step under way is given up, since there is no time to end it");
}

void Executor::run_batches() {
  num_replayed_ = 0;
  for (StepBatch& batch : batches_) {
    if (batch.writes_states) {
      writes_states_.store(true, std::memory_order_release);
    }
    if (batch.is_recorded && has_run_) {
      replay(batch);
      continue;
    }
    for (const IssueStep& step : batch.steps) {
      run(step);
    }
  }
}

void Executor::replay(StepBatch& batch) {
  StepStamps& stamps = streams_.stamps();
  const bool is_stamped = stamps.is_on() && batch.recording != nullptr;
  if (!batch.recording) {
    batch.recording = backend_.record([&] {
      for (const IssueStep& step : batch.steps) {
        run(step);
      }
    });
  }
  const std::int64_t begin = is_stamped ? StepStamps::now() : 0;
  batch.recording->replay();
  if (is_stamped) {
    const std::int64_t end = StepStamps::now();
    for (const IssueStep& step : batch.steps) {
      stamps.add(step, begin, end);
    }
  }
  ++num_replayed_;
  if (progress_ != nullptr) {
    progress_->finish_instruction();
  }
}

void Executor::run(const IssueStep& next) {
  if (progress_ != nullptr && next.instruction == 0) {
    progress_->start_call(first_call_ + next.call);
  }
  if (!talks_.empty() && talks_[next.place]) {
    const auto start = std::chrono::steady_clock::now();
    const double waited_before = streams_.waited_seconds();
    streams_.run(next);
    talk_seconds_ += seconds_since(start) - (streams_.waited_seconds() - waited_before);
  } else {
    streams_.run(next);
  }
  if (progress_ != nullptr && next.stream == 0) {
    progress_->finish_instruction();
  }
  // The first step loads kernels, and a driver that does may hold up other ranks of the process:
  // none of them must be waited for meanwhile.
  if (!has_run_ && backend_.orders_streams() && talks(instruction_of(program_, next))) {
    backend_.synchronize();
  }
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
  for (const IssueStep& step : order_.steps) {
    const auto start = std::chrono::steady_clock::now();
    bound_.execute(step);
    backend_.synchronize();
    seconds[info(*instruction_of(program_, step).op).name] += seconds_since(start);
  }
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

std::vector<std::string> Executor::file_notes() const {
  std::vector<std::string> notes;
  if (const std::string why = bound_.why_threads(); !why.empty()) {
    notes.push_back(format("io_uring: {}: threads read and write what is offloaded", why));
  }
  if (const FileArena* const file = memory_.file(); file != nullptr && !file->is_direct()) {
    notes.push_back(
        format("{}: its file system knows no O_DIRECT, so that all goes through the page cache",
               file->text()));
  }
  return notes;
}

std::optional<Executor::FilePlace> Executor::file_of(const Binding& state) const {
  const Buffer& buffer = program_[state.tensor.buffer];
  if (buffer.space != Space::kFile) {
    return std::nullopt;
  }
  return FilePlace{.path = memory_.file()->path(),
                   .file_bytes = program_.file_bytes,
                   .offset = buffer.offsets.front() + state.tensor.offset};
}

void Executor::set_scalar(std::string_view scalar, float value) {
  *reinterpret_cast<float*>(bytes(find_binding(program_.scalars, scalar)).data()) = value;
}

float Executor::output_scalar(std::string_view output, std::int64_t microbatch) {
  const Binding& binding = find_binding(program_.outputs, output);
  return *reinterpret_cast<const float*>(bytes(binding, microbatch).data());
}

}  // namespace tessera
