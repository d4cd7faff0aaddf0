#include "tessera/runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "tessera/base/error.h"

namespace tessera {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
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
  start_stream();
}

View Executor::bind(const TensorRef& tensor, std::int64_t instance) {
  const Buffer& buffer = program_[tensor.buffer];
  const std::int64_t shift = buffer.num_instances > 1 ? instance * buffer.instance_stride() : 0;
  View view = view_of(tensor);
  view.data = arena_->data() + buffer.offset + shift + tensor.offset;
  return view;
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
    bound.push_back(next);
  }
  return bound;
}

// Its work is the same in every step, so that the thread needs no queue: it has the list of all
// items, and is told how many of them it may run.
void Executor::start_stream() {
  for (const Call& call : program_.calls) {
    const std::vector<Bound>& segment = segments_[call.segment.at()];
    for (std::size_t i = 0; i < segment.size(); ++i) {
      const Instruction& instruction = *segment[i].instruction;
      if (instruction.stream == StreamId{0}) {
        continue;
      }
      items_.push_back({.call = &call, .index = i});
      for (const EventId event : instruction.signals) {
        signalled_.resize(std::max(signalled_.size(), event.at() + 1), 0);
      }
    }
  }
  if (!items_.empty()) {
    stream_ = std::make_unique<StreamThread>(
        items_.size(), [this](std::size_t item) { run_instruction(items_[item]); });
  }
}

void Executor::run_step() {
  TESSERA_CHECK(!failed_, "the streams of this program ended with an error in an earlier step");
  waited_seconds_ = 0;
  if (!stream_) {
    run_calls();
    return;
  }
  std::ranges::fill(signalled_, stream_->last());
  try {
    run_calls();
    wait_for(stream_->last());
  } catch (const std::exception& error) {
    failed_ = true;
    stream_->stop();
    backend_.abort(error.what());
    throw;
  }
}

void Executor::run_calls() {
  for (const Call& call : program_.calls) {
    const std::vector<Bound>& segment = segments_[call.segment.at()];
    for (std::size_t i = 0; i < segment.size(); ++i) {
      const Bound& bound = segment[i];
      if (bound.instruction->stream == StreamId{0}) {
        wait_for_events(bound);
        run_instruction({.call = &call, .index = i});
      } else {
        issue(bound);
      }
    }
  }
}

// The other stream may go on as far as here. All that this one did before is done by then, so that
// no event of this stream has to be waited for.
void Executor::issue(const Bound& bound) {
  const StreamThread::Ticket ticket = stream_->issue();
  for (const EventId event : bound.instruction->signals) {
    signalled_[event.at()] = ticket;
  }
}

void Executor::wait_for_events(const Bound& bound) {
  for (const EventId event : bound.instruction->waits) {
    if (event.at() < signalled_.size()) {
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
  std::map<std::string, double> seconds;
  for (const Call& call : program_.calls) {
    for (const Bound& bound : segments_[call.segment.at()]) {
      const Clock::time_point start = Clock::now();
      execute(call, bound);
      seconds[info(*bound.op).name] += seconds_since(start);
    }
  }
  std::vector<std::pair<std::string, double>> rows(seconds.begin(), seconds.end());
  std::stable_sort(
      rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return rows;
}

std::span<std::byte> Executor::bytes(const Binding& binding, std::int64_t instance) {
  const View view = bind(binding.tensor, instance);
  TESSERA_CHECK(view.is_contiguous(), "{} is not contiguous", binding.name);
  return {view.as<std::byte>(), static_cast<std::size_t>(binding.tensor.type.num_bytes())};
}

void Executor::set_scalar(std::string_view scalar, float value) {
  *reinterpret_cast<float*>(bytes(find_binding(program_.scalars, scalar)).data()) = value;
}

float Executor::output_scalar(std::string_view output) {
  return *reinterpret_cast<const float*>(bytes(find_binding(program_.outputs, output)).data());
}

}  // namespace tessera
