#include "tessera/runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "tessera/base/error.h"

namespace tessera {

Executor::Executor(const Program& program, Backend& backend)
    : program_(program), backend_(backend), arena_(backend.allocate(program.arena_bytes)) {
  for (const Segment& segment : program.segments) {
    segments_.push_back(bind_segment(segment));
  }
}

View Executor::bind(const TensorRef& tensor, std::int64_t instance) {
  const Buffer& buffer = program_[tensor.buffer];
  const std::int64_t shift = buffer.num_instances > 1 ? instance * buffer.instance_stride() : 0;
  View view = view_of(tensor);
  view.data = arena_->data() + buffer.offset + shift + tensor.offset;
  return view;
}

Executor::BoundSegment Executor::bind_segment(const Segment& segment) {
  BoundSegment bound;
  for (const Instruction& instruction : segment.instructions) {
    Bound next{.op = instruction.op.get(),
               .first_view = static_cast<std::uint32_t>(views_.size()),
               .num_operands = static_cast<std::uint32_t>(instruction.operands.size()),
               .num_results = static_cast<std::uint32_t>(instruction.results.size()),
               .workspace = {}};
    for (const auto* tensors : {&instruction.operands, &instruction.results}) {
      for (const TensorRef& tensor : *tensors) {
        const View view = bind(tensor, 0);
        if (const Buffer& buffer = program_[tensor.buffer]; buffer.num_instances > 1) {
          bound.moving.push_back({.view = static_cast<std::uint32_t>(views_.size()),
                                  .first = view.as<std::byte>(),
                                  .stride = buffer.instance_stride()});
        }
        views_.push_back(view);
      }
    }
    if (instruction.workspace.valid()) {
      const Buffer& buffer = program_[instruction.workspace];
      next.workspace = {arena_->data() + buffer.offset, static_cast<std::size_t>(buffer.bytes)};
    }
    bound.instructions.push_back(next);
  }
  return bound;
}

void Executor::run_step() {
  for (const Call& call : program_.calls) {
    run_call(call);
  }
}

const Executor::BoundSegment& Executor::enter(const Call& call) {
  const BoundSegment& segment = segments_[call.segment.at()];
  for (const Moving& moving : segment.moving) {
    views_[moving.view].data = moving.first + call.instance * moving.stride;
  }
  return segment;
}

void Executor::run_call(const Call& call) {
  const BoundSegment& segment = enter(call);
  std::size_t index = 0;
  try {
    for (; index < segment.instructions.size(); ++index) {
      run_instruction(segment.instructions[index]);
    }
  } catch (Error& error) {
    error.add_context(format("segment {}, microbatch {}, instruction {}: {}",
                             program_[call.segment].name,
                             call.microbatch,
                             index,
                             info(*segment.instructions[index].op).name));
    throw;
  }
}

void Executor::run_instruction(const Bound& instruction) {
  const View* views = views_.data() + instruction.first_view;
  backend_.run(*instruction.op,
               {.in = {views, instruction.num_operands},
                .out = {views + instruction.num_operands, instruction.num_results},
                .workspace = instruction.workspace});
}

std::vector<std::pair<std::string, double>> Executor::profile_step() {
  using Clock = std::chrono::steady_clock;
  std::map<std::string, double> seconds;
  for (const Call& call : program_.calls) {
    for (const Bound& instruction : enter(call).instructions) {
      const Clock::time_point start = Clock::now();
      run_instruction(instruction);
      seconds[info(*instruction.op).name] +=
          std::chrono::duration<double>(Clock::now() - start).count();
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
