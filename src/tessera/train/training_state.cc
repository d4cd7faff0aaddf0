#include "tessera/train/training_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/random.h"

namespace tessera {
namespace {

constexpr std::array<std::pair<std::string_view, TensorRole>, 3> kStatePrefixes = {
    {{"moment1.", TensorRole::kMoment1},
     {"moment2.", TensorRole::kMoment2},
     {"master.", TensorRole::kMaster}}};

// The parameter that a state belongs to, and as what.
std::pair<std::string, TensorRole> split_name(const std::string& state, Category category) {
  if (category == Category::kOptimizer) {
    for (const auto& [prefix, role] : kStatePrefixes) {
      if (state.starts_with(prefix)) {
        return {state.substr(prefix.size()), role};
      }
    }
  }
  return {state, TensorRole::kParameter};
}

void fill(std::span<float> out, const ParameterInit& parameter, std::uint64_t seed, int threads) {
  const Initializer& init = parameter.init;
  if (init.std == 0.0) {
    std::fill(out.begin(), out.end(), static_cast<float>(init.mean));
    return;
  }
  TESSERA_CHECK(init.mean == 0.0, "{}: normal with a mean", parameter.name);
  fill_normal(random_key(seed, parameter.name),
              0,
              {.std = static_cast<float>(init.std), .cut = static_cast<float>(init.cut)},
              out,
              threads);
}

std::span<float> floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

void initialize(Executor& executor,
                const ParameterInit& parameter,
                std::uint64_t seed,
                int threads) {
  const Program& program = executor.program();
  const Binding& binding = find_binding(program.states, parameter.name);
  if (binding.tensor.type.dtype == DType::kF32) {
    fill(floats(executor.bytes(binding)), parameter, seed, threads);
    return;
  }
  const std::span<float> master =
      floats(executor.bytes(find_binding(program.states, "master." + parameter.name)));
  fill(master, parameter, seed, threads);
  auto* rounded = reinterpret_cast<BFloat16*>(executor.bytes(binding).data());
  std::transform(master.begin(), master.end(), rounded, to_bfloat16);
}

}  // namespace

std::vector<ParameterInit> parameter_inits(const Graph& graph) {
  std::vector<ParameterInit> inits;
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    inits.push_back({.name = graph[parameter].name, .init = graph[parameter].init});
  }
  return inits;
}

void initialize_state(Executor& executor,
                      const std::vector<ParameterInit>& inits,
                      std::uint64_t seed,
                      int threads) {
  for (const ParameterInit& parameter : inits) {
    initialize(executor, parameter, seed, threads);
  }
}

std::vector<CheckpointTensor> state_tensors(Executor& executor) {
  std::vector<CheckpointTensor> tensors;
  for (const Binding& state : executor.program().states) {
    const Category category = executor.program()[state.tensor.buffer].category;
    if (category == Category::kGradient) {
      continue;
    }
    auto [name, role] = split_name(state.name, category);
    std::vector<std::int64_t> shape;
    for (const Dim& dim : state.tensor.type.dims) {
      shape.push_back(dim.bound);
    }
    tensors.push_back({.name = std::move(name),
                       .role = role,
                       .dtype = state.tensor.type.dtype,
                       .shape = std::move(shape),
                       .data = executor.bytes(state)});
  }
  return tensors;
}

void load_state(Executor& executor, const CheckpointReader& checkpoint) {
  for (const Binding& state : executor.program().states) {
    const Category category = executor.program()[state.tensor.buffer].category;
    if (category == Category::kGradient) {
      continue;
    }
    const auto [name, role] = split_name(state.name, category);
    const std::span<const std::byte> source = checkpoint.data(name, role);
    const std::span<std::byte> target = executor.bytes(state);
    TESSERA_REQUIRE(source.size() == target.size(),
                    ErrorCode::kInvalidData,
                    "{} \"{}\" has {} bytes in the checkpoint, expected {}",
                    to_string(role),
                    name,
                    source.size(),
                    target.size());
    std::memcpy(target.data(), source.data(), source.size());
  }
}

}  // namespace tessera
