#include "tessera/runtime/training_step.h"

#include <cstddef>

#include "tessera/program/step_names.h"

namespace tessera {
namespace {

float inverse(std::int64_t count) {
  return count > 0 ? static_cast<float>(1.0 / static_cast<double>(count)) : 0.0F;
}

}  // namespace

WorkspaceQuery workspace_of(Backend& backend) {
  return [&backend](const Op& op, std::span<const View> in, std::span<const View> out) {
    return backend.workspace_bytes(op, in, out);
  };
}

std::span<std::int32_t> input_row(Executor& executor,
                                  std::string_view input,
                                  std::int64_t row,
                                  std::int64_t microbatch) {
  const Binding& binding = find_binding(executor.program().inputs, input);
  const std::span<std::byte> bytes = executor.bytes(binding, microbatch);
  const std::span ids(reinterpret_cast<std::int32_t*>(bytes.data()),
                      bytes.size() / sizeof(std::int32_t));
  const auto length = static_cast<std::size_t>(binding.tensor.type.dims.back().bound);
  return ids.subspan(static_cast<std::size_t>(row) * length, length);
}

TrainingStep::TrainingStep(Executor& executor) : executor_(executor) {
  for (const std::string_view output :
       {step_names::kLoss, step_names::kGradNorm, step_names::kApplied}) {
    find_binding(executor.program().outputs, output);
  }
}

StepOutputs TrainingStep::run(const StepInputs& inputs) {
  const bool apply = inputs.apply && inputs.num_labels > 0;
  executor_.set_scalar(step_names::kInverseLabels, inverse(inputs.num_labels));
  executor_.set_scalar(step_names::kLearningRate, static_cast<float>(inputs.learning_rate));
  executor_.set_scalar(step_names::kUpdateNumber, static_cast<float>(inputs.update_number));
  executor_.set_scalar(step_names::kApply, apply ? 1.0F : 0.0F);
  executor_.run_step();
  return outputs();
}

StepOutputs TrainingStep::outputs() {
  return {.loss_sum = executor_.output_scalar(step_names::kLoss),
          .grad_norm = executor_.output_scalar(step_names::kGradNorm),
          .applied = executor_.output_scalar(step_names::kApplied) != 0.0F};
}

void run_losses(Executor& executor) {
  executor.set_scalar(step_names::kInverseLabels, 0.0F);  // of gradients, which nobody asks for
  executor.run_step();
}

}  // namespace tessera
