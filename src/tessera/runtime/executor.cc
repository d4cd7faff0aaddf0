#include "tessera/runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>

#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/ops/op.h"

namespace tessera {

namespace {

using Clock = std::chrono::steady_clock;

constexpr StreamId kOwn = {0};
constexpr StreamId kOther = {1};

TensorTypes types_of(const std::vector<TensorRef>& tensors) {
  TensorTypes types;
  for (const TensorRef& tensor : tensors) {
    types.push_back(tensor.type);
  }
  return types;
}

// Whether the instruction waits for other ranks.
bool talks(const Instruction& instruction) {
  return !collectives(*instruction.op, types_of(instruction.operands)).empty();
}

}  // namespace

Executor::Executor(const Program& program, Backend& backend)
    : Executor(program, backend, backend.allocate(program.arena_bytes), program.arena_bytes) {}

Executor::Executor(const Program& program,
                   Backend& backend,
                   std::shared_ptr<Arena> arena,
                   std::int64_t arena_bytes)
    : program_(program), backend_(backend), arena_(std::move(arena)) {
  TESSERA_CHECK(program.arena_bytes <= arena_bytes,
                "program {} needs {} bytes, its arena has {}",
                program.name,
                program.arena_bytes,
                arena_bytes);
  TESSERA_REQUIRE(program.streams.size() <= 2,
                  ErrorCode::kUnsupported,
                  "a program of {} streams: expected at most 2",
                  program.streams.size());
  for (const Segment& segment : program.segments) {
    segments_.push_back(bind_segment(segment));
  }
  if (arena_->has_mirror()) {
    taken_ = stretches_of(program.inputs);
    std::ranges::copy(stretches_of(program.scalars), std::back_inserter(taken_));
    brought_ = stretches_of(program.outputs);
  }
  find_first_write();
  start_stream();
  plan_batches();
}

std::int64_t Executor::place_of(const TensorRef& tensor, std::int64_t instance) const {
  const Buffer& buffer = program_[tensor.buffer];
  const std::int64_t shift = buffer.num_instances > 1 ? instance * buffer.instance_stride() : 0;
  return buffer.offset + shift + tensor.offset;
}

View Executor::bind(const TensorRef& tensor, std::int64_t instance) {
  View view = view_of(tensor);
  view.data = arena_->data() + place_of(tensor, instance);
  return view;
}

// The whole buffers, each once: tensors side by side share one.
std::vector<Executor::Stretch> Executor::stretches_of(std::span<const Binding> bindings) const {
  std::vector<BufferId> buffers;
  std::vector<Stretch> stretches;
  for (const Binding& binding : bindings) {
    const BufferId id = binding.tensor.buffer;
    if (std::ranges::find(buffers, id) == buffers.end()) {
      buffers.push_back(id);
      stretches.push_back({.offset = program_[id].offset, .bytes = program_[id].total_bytes()});
    }
  }
  return stretches;
}

std::vector<Executor::Bound> Executor::bind_segment(const Segment& segment) {
  std::vector<Bound> bound;
  for (const Instruction& instruction : segment.instructions) {
    Bound next{.op = instruction.op.get(),
               .first_view = static_cast<std::uint32_t>(views_.size()),
               .num_operands = static_cast<std::uint32_t>(instruction.operands.size()),
               .num_results = static_cast<std::uint32_t>(instruction.results.size()),
               .first_moving = static_cast<std::uint32_t>(moving_.size()),
               .num_moving = 0,
               .workspace = {},
               .instruction = &instruction};
    for (const auto* tensors : {&instruction.operands, &instruction.results}) {
      for (const TensorRef& tensor : *tensors) {
        const View view = bind(tensor, 0);
        if (const Buffer& buffer = program_[tensor.buffer]; buffer.num_instances > 1) {
          moving_.push_back({.view = static_cast<std::uint32_t>(views_.size()),
                             .first = view.as<std::byte>(),
                             .stride = buffer.instance_stride()});
          ++next.num_moving;
        }
        views_.push_back(view);
      }
    }
    if (instruction.workspace.valid()) {
      const Buffer& buffer = program_[instruction.workspace];
      next.workspace = {arena_->data() + buffer.offset, static_cast<std::size_t>(buffer.bytes)};
    }
    require_workspace(next);
    bound.push_back(next);
  }
  return bound;
}

// A kernel that has less than it needs writes over what lies beside.
void Executor::require_workspace(const Bound& bound) {
  const std::span<const View> views = std::span(views_).subspan(bound.first_view);
  const std::int64_t needed =
      backend_.workspace_bytes(*bound.op,
                               views.first(bound.num_operands),
                               views.subspan(bound.num_operands, bound.num_results));
  TESSERA_CHECK(std::cmp_less_equal(needed, bound.workspace.size()),
                "{} needs {} bytes of workspace on this backend and has {}: the program was "
                "compiled for another target, or for another number of threads",
                info(*bound.op).name,
                needed,
                bound.workspace.size());
}

// Of what a checkpoint holds: accumulators are written all the time.
void Executor::find_first_write() {
  const auto is_saved = [&](const TensorRef& tensor) {
    const Buffer& buffer = program_[tensor.buffer];
    return buffer.persistent &&
           (buffer.category == Category::kParameter || buffer.category == Category::kOptimizer);
  };
  for (const Call& call : program_.calls) {
    const std::vector<Bound>& segment = segments_[call.segment.at()];
    for (std::size_t i = 0; i < segment.size(); ++i) {
      if (std::ranges::any_of(segment[i].instruction->results, is_saved)) {
        first_write_ = {.call = &call, .index = i};
        return;
      }
    }
  }
}

// Its work is the same in every step, so that the thread needs no queue: it has the list of all
// items, and is told how many of them it may run.
void Executor::start_stream() {
  for (const Call& call : program_.calls) {
    const std::vector<Bound>& segment = segments_[call.segment.at()];
    for (std::size_t i = 0; i < segment.size(); ++i) {
      const Instruction& instruction = *segment[i].instruction;
      if (instruction.stream == kOwn) {
        continue;
      }
      items_.push_back({.call = &call, .index = i});
      for (const EventId event : instruction.signals) {
        signalled_.resize(std::max(signalled_.size(), event.at() + 1), 0);
      }
    }
  }
  has_ordered_streams_ = !items_.empty() && backend_.orders_streams();
  if (!items_.empty() && !has_ordered_streams_) {
    stream_ = std::make_unique<StreamThread>(
        items_.size(), [this](std::size_t item) { run_instruction(items_[item]); });
  }
}

void Executor::plan_batches() {
  constexpr std::size_t kFewest = 2;  // a single op is begun as fast by itself
  for (const Call& call : program_.calls) {
    const std::vector<Bound>& segment = segments_[call.segment.at()];
    for (std::size_t i = 0; i < segment.size(); ++i) {
      const Instruction& instruction = *segment[i].instruction;
      const TensorTypes operands = types_of(instruction.operands);
      const bool waits = instruction.stream != kOwn || !instruction.waits.empty();
      const bool is_recorded =
          (has_ordered_streams_ || !waits) && backend_.records(*instruction.op, operands);
      if (batches_.empty() || !is_recorded || !batches_.back().is_recorded) {
        batches_.push_back({.items = {}, .is_recorded = is_recorded});
      }
      Batch& batch = batches_.back();
      batch.items.push_back({.call = &call, .index = i});
      batch.writes_states =
          batch.writes_states || (&call == first_write_.call && i == first_write_.index);
    }
  }
  for (Batch& batch : batches_) {
    batch.is_recorded = batch.is_recorded && batch.items.size() >= kFewest;
  }
  if (std::ranges::none_of(batches_, &Batch::is_recorded)) {
    batches_.clear();
  }
}

void Executor::run_step() {
  TESSERA_CHECK(!failed_, "the streams of this program ended with an error in an earlier step");
  for (const Stretch& stretch : taken_) {
    arena_->to_device(stretch.offset, stretch.bytes);
  }
  run_all();
  for (const Stretch& stretch : brought_) {
    arena_->to_host(stretch.offset, stretch.bytes);
  }
  writes_states_.store(false, std::memory_order_release);
}

void Executor::run_all() {
  waited_seconds_ = 0;
  if (items_.empty() && !backend_.orders_streams()) {
    run_calls();
    backend_.synchronize();
    has_run_ = true;
    return;
  }
  try {
    if (stream_) {
      std::ranges::fill(signalled_, stream_->last());
    }
    run_calls();
    if (stream_) {
      wait_for(stream_->last());
    }
    backend_.synchronize();  // what kernels failed with comes out here, and ends the others too
    has_run_ = true;
  } catch (const std::exception& error) {
    failed_ = true;
    if (stream_) {
      stream_->stop();
    }
    backend_.abort(error.what());
    throw;
  }
}

void Executor::run_calls() {
  if (!batches_.empty()) {
    run_batches();
    return;
  }
  for (const Call& call : program_.calls) {
    require_time();
    const std::size_t end = segments_[call.segment.at()].size();
    if (&call != first_write_.call) {
      run_items(call, 0, end);
      continue;
    }
    run_items(call, 0, first_write_.index);
    writes_states_.store(true, std::memory_order_release);
    run_items(call, first_write_.index, end);
  }
}

void Executor::require_time() const {
  TESSERA_REQUIRE(is_over_ == nullptr || !is_over_() || !states_are_whole(),
                  ErrorCode::kTimeout,
                  "the step under way is given up, since there is no time to end it");
}

void Executor::run_items(const Call& call, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    run_item({.call = &call, .index = i});
  }
}

void Executor::run_batches() {
  num_replayed_ = 0;
  for (Batch& batch : batches_) {
    if (batch.writes_states) {
      writes_states_.store(true, std::memory_order_release);
    }
    const auto run = [&] {
      for (const Item& item : batch.items) {
        run_item(item);
      }
    };
    if (!batch.is_recorded || !has_run_) {
      run();
      continue;
    }
    if (!batch.recording) {
      batch.recording = backend_.record(run);
    }
    batch.recording->replay();
    ++num_replayed_;
  }
}

void Executor::run_item(const Item& item) {
  const Bound& bound = segments_[item.call->segment.at()][item.index];
  if (bound.instruction->stream == kOwn) {
    wait_for_events(bound);
    run_instruction(item);
  } else {
    issue(item);
  }
  // The first step loads kernels, and a driver that does may hold up other ranks of the process:
  // none of them must be waited for meanwhile.
  if (!has_run_ && backend_.orders_streams() && talks(*bound.instruction)) {
    backend_.synchronize();
  }
}

// The other stream may go on as far as here. All that this one did before is done by then, so that
// no event of this stream has to be waited for.
void Executor::issue(const Item& item) {
  const Instruction& instruction = *segments_[item.call->segment.at()][item.index].instruction;
  if (has_ordered_streams_) {
    // A number that no event of the program has.
    backend_.signal(signalled_.size(), kOwn);
    backend_.wait(signalled_.size(), kOther);
    run_instruction(item);
    for (const EventId event : instruction.signals) {
      backend_.signal(event.at(), kOther);
    }
    return;
  }
  backend_.hand_over();
  const StreamThread::Ticket ticket = stream_->issue();
  for (const EventId event : instruction.signals) {
    signalled_[event.at()] = ticket;
  }
}

void Executor::wait_for_events(const Bound& bound) {
  for (const EventId event : bound.instruction->waits) {
    if (event.at() >= signalled_.size()) {
      continue;  // of this stream
    }
    if (has_ordered_streams_) {
      backend_.wait(event.at(), kOwn);
    } else {
      wait_for(signalled_[event.at()]);
    }
  }
}

void Executor::wait_for(StreamThread::Ticket ticket) {
  if (!stream_->done(ticket)) {
    const Clock::time_point start = Clock::now();
    stream_->wait_for(ticket);
    waited_seconds_ += seconds_since(start);
  }
}

void Executor::run_instruction(const Item& item) {
  const Bound& bound = segments_[item.call->segment.at()][item.index];
  try {
    execute(*item.call, bound);
  } catch (Error& error) {
    error.add_context(format("segment {}, microbatch {}, instruction {}: {}",
                             program_[item.call->segment].name,
                             item.call->microbatch,
                             item.index,
                             info(*bound.op).name));
    throw;
  }
}

void Executor::execute(const Call& call, const Bound& bound) {
  if (!program_.runs(*bound.instruction, call)) {
    return;
  }
  for (std::uint32_t i = 0; i < bound.num_moving; ++i) {
    const Moving& moving = moving_[bound.first_moving + i];
    views_[moving.view].data = moving.first + call.instance * moving.stride;
  }
  const View* views = views_.data() + bound.first_view;
  backend_.run(*bound.op,
               {.in = {views, bound.num_operands},
                .out = {views + bound.num_operands, bound.num_results},
                .workspace = bound.workspace},
               bound.instruction->stream);
}

std::vector<std::pair<std::string, double>> Executor::profile_step() {
  for (const Stretch& stretch : taken_) {
    arena_->to_device(stretch.offset, stretch.bytes);
  }
  std::map<std::string, double> seconds;
  for (const Call& call : program_.calls) {
    for (const Bound& bound : segments_[call.segment.at()]) {
      const Clock::time_point start = Clock::now();
      execute(call, bound);
      backend_.synchronize();
      seconds[info(*bound.op).name] += seconds_since(start);
    }
  }
  for (const Stretch& stretch : brought_) {
    arena_->to_host(stretch.offset, stretch.bytes);
  }
  std::vector<std::pair<std::string, double>> rows(seconds.begin(), seconds.end());
  std::stable_sort(
      rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return rows;
}

std::span<std::byte> Executor::bytes(const Binding& binding, std::int64_t instance) {
  TESSERA_CHECK(view_of(binding.tensor).is_contiguous(), "{} is not contiguous", binding.name);
  return {arena_->host() + place_of(binding.tensor, instance),
          static_cast<std::size_t>(binding.tensor.type.num_bytes())};
}

void Executor::draw(const Binding& state,
                    std::int64_t begin,
                    std::int64_t count,
                    const Initial& initial) {
  const TensorRef& tensor = state.tensor;
  TESSERA_CHECK(view_of(tensor).is_contiguous(), "{} is not contiguous", state.name);
  View view = {.dtype = tensor.type.dtype, .num_dims = 1};
  view.data = arena_->data() + place_of(tensor, 0) +
              begin * static_cast<std::int64_t>(size_bytes(tensor.type.dtype));
  view.sizes[0] = count;
  view.strides[0] = 1;
  backend_.draw(initial, view);
}

void Executor::state_to_device(const Binding& state) {
  if (arena_->has_mirror()) {
    arena_->to_device(place_of(state.tensor, 0), static_cast<std::int64_t>(bytes(state).size()));
  }
}

std::span<std::byte> Executor::state_to_host(const Binding& state,
                                             std::int64_t first,
                                             std::int64_t count) {
  const auto size = static_cast<std::int64_t>(size_bytes(state.tensor.type.dtype));
  const std::span<std::byte> elements = bytes(state).subspan(
      static_cast<std::size_t>(first * size), static_cast<std::size_t>(count * size));
  if (arena_->has_mirror()) {
    arena_->to_host(place_of(state.tensor, 0) + first * size, std::ssize(elements));
  }
  return elements;
}

void Executor::set_scalar(std::string_view scalar, float value) {
  *reinterpret_cast<float*>(bytes(find_binding(program_.scalars, scalar)).data()) = value;
}

float Executor::output_scalar(std::string_view output) {
  return *reinterpret_cast<const float*>(bytes(find_binding(program_.outputs, output)).data());
}

}  // namespace tessera
