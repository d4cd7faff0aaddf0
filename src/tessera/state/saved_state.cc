#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/state/state_range.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

// Whether another rank holds the same part of this tensor and saves it: one of the tensor axes, or
// of a pipeline rank before this one.
bool saved_elsewhere(const StateBinding& state, const TensorType& whole, const StatePart& part) {
  if (part.of_earlier.contains(state.name)) {
    return true;
  }
  const AxisSizes cut_by = axes_of(whole, part.dims);
  return std::ranges::any_of(part.tensor_axes, [&](const std::string& axis) {
    return std::ranges::find(cut_by, axis, &AxisSize::name) == cut_by.end() &&
           part.coordinate(axis) != 0;
  });
}

// Calls body(tensor without data, the state that has it, its first element there) for all that a
// rank saves, in the states of the rank whose part is `holder`; false where that has not all.
template <class Body>
bool for_each_saved(const Program& program,
                    const std::vector<ParameterInit>& parameters,
                    const StatePart& part,
                    const StatePart& holder,
                    const Body& body) {
  for (const StateBinding& state : program.states) {
    const std::optional<TensorRole> role = saved_role(state.state.role);
    if (!role) {
      continue;
    }
    const TensorType& whole = find_parameter(parameters, state.state.parameter).type;
    if (role == TensorRole::kMaster && whole.dtype == DType::kF32) {
      continue;  // it is the parameter's copy
    }
    const SlicedPart own(whole, part);
    const TensorPart& tensor = own.tensor;
    const StateRange saved = saved_range(own);
    // A part may be padding alone.
    if (saved.count == 0 || tensor.box().num_valid_elements() == 0 ||
        saved_elsewhere(state, whole, part)) {
      continue;
    }
    const SlicedPart held(whole, holder);
    const StateRange kept = range_of(held, state.tensor.type);
    const TensorBox& box = held.tensor.box();
    if (box.offset() != tensor.box().offset() || box.extent() != tensor.box().extent() ||
        saved.begin < kept.begin || saved.begin + saved.count > kept.begin + kept.count) {
      return false;
    }
    body(CheckpointTensor{.name = state.state.parameter,
                          .role = *role,
                          .dtype = state.tensor.type.dtype,
                          .shape = whole.bounds(),
                          .slice = TensorSlice{.offset = tensor.box().offset(),
                                               .extent = tensor.box().extent(),
                                               .begin = saved.begin,
                                               .count = saved.count},
                          .data = {}},
         state,
         saved.begin - kept.begin);
  }
  return true;
}

}  // namespace

std::vector<CheckpointTensor> model_tensors(const std::vector<ParameterInit>& parameters,
                                            DType moments) {
  std::vector<CheckpointTensor> tensors;
  for (const ParameterInit& parameter : parameters) {
    const DType dtype = parameter.type.dtype;
    const auto add = [&](TensorRole role, DType as) {
      tensors.push_back(
          {.name = parameter.name, .role = role, .dtype = as, .shape = parameter.type.bounds()});
    };
    add(parameter.buffer ? TensorRole::kBuffer : TensorRole::kParameter, dtype);
    if (parameter.frozen || parameter.buffer) {
      continue;
    }
    add(TensorRole::kMoment1, moments);
    add(TensorRole::kMoment2, moments);
    if (dtype != DType::kF32) {
      add(TensorRole::kMaster, DType::kF32);
    }
  }
  return tensors;
}

std::vector<CheckpointTensor> saved_tensors(const Program& program,
                                            const std::vector<ParameterInit>& parameters,
                                            const StatePart& part,
                                            SavedFrom from) {
  std::vector<CheckpointTensor> tensors;
  for_each_saved(
      program,
      parameters,
      part,
      part,
      [&](CheckpointTensor tensor, const Binding& state, std::int64_t /*first*/) {
        if (from == SavedFrom::kAll || program[state.tensor.buffer].space == Space::kDevice) {
          tensors.push_back(std::move(tensor));
        }
      });
  return tensors;
}

std::vector<CheckpointTensor> state_tensors(Executor& executor,
                                            const std::vector<ParameterInit>& parameters,
                                            const StatePart& part) {
  return replica_tensors(executor, parameters, part, part).value();
}

bool has_states_of(const Program& program,
                   const std::vector<ParameterInit>& parameters,
                   const StatePart& holder,
                   const StatePart& other) {
  return for_each_saved(
      program,
      parameters,
      other,
      holder,
      [](const CheckpointTensor& /*tensor*/, const Binding& /*state*/, std::int64_t /*first*/) {});
}

std::optional<std::vector<CheckpointTensor>> replica_tensors(
    Executor& executor,
    const std::vector<ParameterInit>& parameters,
    const StatePart& holder,
    const StatePart& other) {
  if (!has_states_of(executor.program(), parameters, holder, other)) {
    return std::nullopt;
  }
  std::vector<CheckpointTensor> tensors;
  for_each_saved(
      executor.program(),
      parameters,
      other,
      holder,
      [&](CheckpointTensor tensor, const Binding& state, std::int64_t first) {
        tensor.data = executor.state_to_host(state, first, tensor.slice->count);
        if (const auto file = executor.file_of(state)) {
          tensor.source = {
              .path = file->path,
              .size_bytes = file->file_bytes,
              .offset = file->offset + first * static_cast<std::int64_t>(size_bytes(tensor.dtype))};
        }
        tensors.push_back(std::move(tensor));
      });
  return tensors;
}

}  // namespace tessera
