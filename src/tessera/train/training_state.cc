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

// A rank's part of a tensor: its stretches of the whole.
class TensorPart {
 public:
  TensorPart(const TensorType& whole, const StatePart& part) : whole_(whole) {
    local_ = local_type(whole, part.dims);
    for (std::size_t d = 0; d < whole.dims.size(); ++d) {
      std::int64_t index = 0;
      std::int64_t step = 1;
      if (const auto axes = part.dims.find(whole.dims[d].name); axes != part.dims.end()) {
        for (const AxisSize& axis : axes->second) {
          index += part.coordinate(axis.name) * step;
          step *= axis.size;
        }
      }
      begins_.push_back(index * local_.dims[d].bound);
      if (local_.dims[d].bound != whole.dims[d].bound) {
        cut_dims_ = d + 1;
      }
    }
  }

  std::int64_t num_elements() const { return local_.num_elements(); }

  // Calls body(first element in the whole, first in the part, count) for the stretches that make up
  // elements [first, first + count) of the part.
  template <class Body>
  void for_each_stretch(std::int64_t first, std::int64_t count, const Body& body) const {
    // Elements that lie together in the whole: all of the last dim that is cut, and what is inside.
    const std::size_t outer = cut_dims_ == 0 ? 0 : cut_dims_ - 1;
    const std::int64_t block = local_.extent(outer, local_.num_dims());
    for (std::int64_t at = first; at < first + count;) {
      const std::int64_t within = at % block;
      const std::int64_t length = std::min(block - within, first + count - at);
      body(first_of_block(at / block, outer) + within, at, length);
      at += length;
    }
  }

 private:
  std::int64_t first_of_block(std::int64_t block, std::size_t outer) const {
    std::int64_t element = cut_dims_ == 0 ? 0 : begins_[outer] * stride(outer);
    for (std::size_t d = outer; d-- > 0;) {
      element += (begins_[d] + block % local_.dims[d].bound) * stride(d);
      block /= local_.dims[d].bound;
    }
    return element;
  }

  std::int64_t stride(std::size_t dim) const { return whole_.extent(dim + 1, whole_.num_dims()); }

  const TensorType& whole_;
  TensorType local_;
  std::vector<std::int64_t> begins_;
  std::size_t cut_dims_ = 0;  // the last dim that is cut, plus 1
};

class StateInitializer {
 public:
  StateInitializer(Executor& executor, std::uint64_t seed, int threads, const StatePart& part)
      : executor_(executor), seed_(seed), threads_(threads), part_(part) {}

  // The parameter, and its master and secondary copy where it has them.
  void initialize(const ParameterInit& parameter) {
    const std::vector<Binding>& states = executor_.program().states;
    write(parameter, find_binding(states, parameter.name));
    for (const char* copy : {"master.", "secondary."}) {
      const auto found = std::ranges::find(states, copy + parameter.name, &Binding::name);
      if (found != states.end()) {
        write(parameter, *found);
      }
    }
  }

 private:
  void write(const ParameterInit& parameter, const Binding& binding) {
    const TensorPart tensor(parameter.type, part_);
    const TensorType& type = binding.tensor.type;
    const std::int64_t begin = slice_begin(tensor, type);
    const std::int64_t size =
        std::clamp<std::int64_t>(tensor.num_elements() - begin, 0, type.num_elements());
    const std::span<std::byte> bytes = executor_.bytes(binding);
    std::ranges::fill(bytes.subspan(static_cast<std::size_t>(size) * size_bytes(type.dtype)),
                      std::byte{0});
    tensor.for_each_stretch(
        begin, size, [&](std::int64_t whole, std::int64_t local, std::int64_t count) {
          write_stretch(parameter, whole, type.dtype, bytes, local - begin, count);
        });
  }

  // Rounds through a block, so that a large tensor takes no memory of its size.
  void write_stretch(const ParameterInit& parameter,
                     std::int64_t first,
                     DType dtype,
                     std::span<std::byte> bytes,
                     std::int64_t at,
                     std::int64_t count) {
    if (dtype == DType::kF32) {
      auto* const to = reinterpret_cast<float*>(bytes.data()) + at;
      draw({to, static_cast<std::size_t>(count)}, parameter, first, seed_, threads_);
      return;
    }
    constexpr std::int64_t kBlock = std::int64_t{1} << 20U;
    for (std::int64_t done = 0; done < count; done += kBlock) {
      block_.resize(static_cast<std::size_t>(std::min(kBlock, count - done)));
      draw(block_, parameter, first + done, seed_, threads_);
      std::ranges::transform(
          block_, reinterpret_cast<BFloat16*>(bytes.data()) + at + done, to_bfloat16);
    }
  }

  std::int64_t slice_begin(const TensorPart& tensor, const TensorType& type) const {
    if (type.num_dims() != 1 || type.dims[0].name != kSliceDim) {
      return 0;
    }
    const std::int64_t padded = padded_elements(tensor.num_elements(), part_.num_slices);
    return part_.slice_index(padded / type.dims[0].bound) * type.dims[0].bound;
  }

  Executor& executor_;
  std::uint64_t seed_;
  int threads_;
  const StatePart& part_;
  std::vector<float> block_;
};

}  // namespace

std::vector<ParameterInit> parameter_inits(const Graph& graph) {
  std::vector<ParameterInit> inits;
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    inits.push_back({.name = graph[parameter].name,
                     .init = graph[parameter].init,
                     .type = graph[parameter].type});
  }
  return inits;
}

void initialize_state(Executor& executor,
                      const std::vector<ParameterInit>& inits,
                      std::uint64_t seed,
                      int threads,
                      const StatePart& part) {
  StateInitializer initializer(executor, seed, threads, part);
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
