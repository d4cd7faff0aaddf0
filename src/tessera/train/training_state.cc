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
#include "tessera/mesh/placement.h"
#include "tessera/ops/collective/collective.h"

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

// Elements [first, first + out.size()) of a parameter.
void draw(std::span<float> out,
          const ParameterInit& parameter,
          std::int64_t first,
          std::uint64_t seed,
          int threads) {
  const Initializer& init = parameter.init;
  if (init.std == 0.0) {
    std::fill(out.begin(), out.end(), static_cast<float>(init.mean));
    return;
  }
  TESSERA_CHECK(init.mean == 0.0, "{}: normal with a mean", parameter.name);
  fill_normal(random_key(seed, parameter.name),
              static_cast<std::uint64_t>(first),
              {.std = static_cast<float>(init.std), .cut = static_cast<float>(init.cut)},
              out,
              threads);
}

class StateInitializer {
 public:
  StateInitializer(Executor& executor,
                   std::uint64_t seed,
                   int threads,
                   std::int64_t num_slices,
                   const SliceIndex& slice_index)
      : executor_(executor),
        seed_(seed),
        threads_(threads),
        num_slices_(num_slices),
        slice_index_(slice_index) {}

  // The parameter, and its master where it has one.
  void initialize(const ParameterInit& parameter) {
    const std::vector<Binding>& states = executor_.program().states;
    write(parameter, find_binding(states, parameter.name));
    const std::string master = "master." + parameter.name;
    const auto found = std::ranges::find(states, master, &Binding::name);
    if (found != states.end()) {
      write(parameter, *found);
    }
  }

 private:
  // Through a block, so that the rounding of a large tensor takes no memory of its size.
  void write(const ParameterInit& parameter, const Binding& binding) {
    constexpr std::int64_t kBlock = std::int64_t{1} << 20U;
    const TensorType& type = binding.tensor.type;
    const std::int64_t first = first_element(parameter, type);
    const std::int64_t size =
        std::clamp<std::int64_t>(parameter.num_elements - first, 0, type.num_elements());
    const std::span<std::byte> bytes = executor_.bytes(binding);
    std::ranges::fill(bytes.subspan(static_cast<std::size_t>(size) * size_bytes(type.dtype)),
                      std::byte{0});
    std::vector<float> block;
    for (std::int64_t begin = 0; begin < size; begin += kBlock) {
      const auto count = static_cast<std::size_t>(std::min(kBlock, size - begin));
      if (type.dtype == DType::kF32) {
        auto* const to = reinterpret_cast<float*>(bytes.data()) + begin;
        draw({to, count}, parameter, first + begin, seed_, threads_);
      } else {
        block.resize(count);
        draw(block, parameter, first + begin, seed_, threads_);
        std::ranges::transform(
            block, reinterpret_cast<BFloat16*>(bytes.data()) + begin, to_bfloat16);
      }
    }
  }

  std::int64_t first_element(const ParameterInit& parameter, const TensorType& type) const {
    if (type.num_dims() != 1 || type.dims[0].name != kSliceDim) {
      return 0;
    }
    const std::int64_t padded = padded_elements(parameter.num_elements, num_slices_);
    return slice_index_(padded / type.dims[0].bound) * type.dims[0].bound;
  }

  Executor& executor_;
  std::uint64_t seed_;
  int threads_;
  std::int64_t num_slices_;
  const SliceIndex& slice_index_;
};

}  // namespace

std::vector<ParameterInit> parameter_inits(const Graph& graph) {
  std::vector<ParameterInit> inits;
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    inits.push_back({.name = graph[parameter].name,
                     .init = graph[parameter].init,
                     .num_elements = graph[parameter].type.num_elements()});
  }
  return inits;
}

std::int64_t only_slice(std::int64_t degree) {
  TESSERA_CHECK(degree == 1, "one rank has no slices, found {}", degree);
  return 0;
}

void initialize_state(Executor& executor,
                      const std::vector<ParameterInit>& inits,
                      std::uint64_t seed,
                      int threads,
                      std::int64_t num_slices,
                      const SliceIndex& slice_index) {
  StateInitializer initializer(executor, seed, threads, num_slices, slice_index);
  for (const ParameterInit& parameter : inits) {
    initializer.initialize(parameter);
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
