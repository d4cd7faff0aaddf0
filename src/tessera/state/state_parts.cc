#include "tessera/state/state_parts.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/state/state_range.h"

namespace tessera {
namespace {

using Tensor = std::pair<std::string, TensorRole>;

// By pipeline rank, the states of its program that one before it has, too, and that are saved.
std::vector<std::set<std::string>> states_of_earlier(const RunPrograms& programs) {
  std::vector<std::set<std::string>> shared;
  std::set<std::string> known;
  for (const Programs& own : programs) {
    std::set<std::string> of_earlier;
    for (const StateBinding& state : own.step.states) {
      if (saved_role(state.state.role) && !known.insert(state.name).second) {
        of_earlier.insert(state.name);
      }
    }
    shared.push_back(std::move(of_earlier));
  }
  return shared;
}

// The pipeline ranks that keep each tensor, by place.
std::map<Tensor, std::vector<std::size_t>> keepers_of(
    const RunPrograms& programs, const std::vector<ParameterInit>& parameters) {
  std::map<Tensor, std::vector<std::size_t>> keepers;
  for (std::size_t place = 0; place < programs.size(); ++place) {
    for (const StateBinding& state : programs[place].step.states) {
      const std::optional<TensorRole> role = saved_role(state.state.role);
      if (!role) {
        continue;
      }
      const std::string& name = state.state.parameter;
      const DType dtype = find_parameter(parameters, name).type.dtype;
      if (role != TensorRole::kMaster || dtype != DType::kF32) {  // else the parameter's copy
        keepers[{name, *role}].push_back(place);
      }
    }
  }
  return keepers;
}

// "0 and 2", "0, 1 and 2"
std::string listed_places(const std::vector<std::size_t>& places) {
  std::string text;
  for (std::size_t i = 0; i < places.size(); ++i) {
    text += format("{}{}", i == 0 ? "" : i + 1 == places.size() ? " and " : ", ", places[i]);
  }
  return text;
}

}  // namespace

StateParts::StateParts(const RunLayout& layout, const RunPrograms& programs)
    : mesh_(layout.mesh),
      dims_(layout.dims()),
      of_earlier_(programs.size() == 1
                      ? ByPipelineRank<std::set<std::string>>(std::set<std::string>())
                      : ByPipelineRank<std::set<std::string>>(mesh_, states_of_earlier(programs))) {
}

StatePart StateParts::of(std::int64_t rank) const {
  StatePart part = state_part(mesh_, rank, dims_);
  part.of_earlier = of_earlier_.of(rank);
  return part;
}

void require_each_tensor_once(const RunPrograms& programs,
                              const std::vector<ParameterInit>& parameters,
                              DType moments) {
  std::map<Tensor, std::vector<std::size_t>> keepers = keepers_of(programs, parameters);
  for (const CheckpointTensor& tensor : model_tensors(parameters, moments)) {
    const auto found = keepers.find({tensor.name, tensor.role});
    TESSERA_CHECK(found != keepers.end(),
                  "tensor {} of the model is kept by none of {}",
                  quote(tensor.name, tensor.role),
                  format_plural(static_cast<std::int64_t>(programs.size()), "pipeline rank"));
    TESSERA_CHECK(found->second.size() == 1 || tensor.role == TensorRole::kBuffer,
                  "tensor {} is kept by pipeline ranks {}, expected by one of them",
                  quote(tensor.name, tensor.role),
                  listed_places(found->second));
    keepers.erase(found);
  }
  TESSERA_CHECK(keepers.empty(),
                "tensor {} is kept by pipeline rank {}, and no checkpoint of the model has it",
                quote(keepers.begin()->first.first, keepers.begin()->first.second),
                listed_places(keepers.begin()->second));
}

}  // namespace tessera
