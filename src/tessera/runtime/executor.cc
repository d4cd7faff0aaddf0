#include "tessera/runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "tessera/base/error.h"

namespace tessera {

Executor::Executor(const Program& program, Backend& backend)
    : program_(program), backend_(backend), arena_(backend.allocate(program.arena_bytes)) {
  for (const Call& call : program.calls) {
    calls_.push_back(bind_call(call));
  }
}

View Executor::bind(const TensorRef& tensor, std::int64_t instance) {
  const Buffer& buffer = program_[tensor.buffer];
  const std::int64_t shift = buffer.num_instances > 1 ? instance * buffer.instance_stride() : 0;
  View view = view_of(tensor);
  view.data = arena_->data() + buffer.offset + shift + tensor.offset;
  return view;
}

Executor::BoundCall Executor::bind_call(const Call& call) {
  BoundCall bound{.call = &call, .instructions = {}};
  for (const Instruction& instruction : program_[call.segment].instructions) {
    Bound next{.op = instruction.op.get(),
               .first_view = static_cast<std::uint32_t>(views_.size()),
               .num_operands = static_cast<std::uint32_t>(instruction.operands.size()),
               .num_results = static_cast<std::uint32_t>(instruction.results.size()),
               .workspace = {}};
    for (const auto* tensors : {&instruction.operands, &instruction.results}) {
      for (const TensorRef& tensor : *tensors) {
        views_.push_back(bind(tensor, call.instance));
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
  for (const BoundCall& call : calls_) {
    run_call(call);
  }
}

void Executor::run_call(const BoundCall& call) {
  std::size_t index = 0;
  try {
    for (; index < call.instructions.size(); ++index) {
      run_instruction(call.instructions[index]);
    }
  } catch (Error& error) {
    error.add_context(format("segment {}, microbatch {}, instruction {}: {}",
                             program_[call.call->segment].name,
                             call.call->microbatch,
                             index,
                             info(*call.instructions[index].op).name));
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
  for (const BoundCall& call : calls_) {
    for (const Bound& instruction : call.instructions) {
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
