#include "tessera/state/training_state.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/comm/wired.h"
#include "tessera/ir/adapters.h"
#include "tessera/mesh/placement.h"
#include "tessera/state/state_range.h"

namespace tessera {
namespace {

// Whether a state is weights: those of its parameter, a copy of them, or a buffer.
bool is_weights(StateRole role) {
  return is_of_model(role) || role == StateRole::kMaster || role == StateRole::kSecondary;
}

// Calls body(first element in the whole, first element here, how many) for the stretches of a
// tensor that a state of this type holds, after padding(first element here, how many) where there
// is some.
template <class Padding, class Body>
void for_each_stretch(const TensorType& state,
                      const TensorType& whole,
                      const StatePart& part,
                      const Padding& padding,
                      const Body& body) {
  const SlicedPart sliced(whole, part);
  const TensorPart& tensor = sliced.tensor;
  const StateRange range = range_of(sliced, state);
  const bool is_padded = tensor.box().num_valid_elements() < tensor.num_elements();
  const std::int64_t kept = is_padded ? 0 : range.count;
  if (kept < state.num_elements()) {
    padding(kept, state.num_elements() - kept);
  }
  tensor.box().for_each_stretch(
      range.begin, range.count, [&](std::int64_t first, std::int64_t local, std::int64_t count) {
        body(first, local - range.begin, count);
      });
}

// Calls body(first element in the whole, their bytes) for the stretches of a tensor that a state
// holds, in the host's memory; what is padding becomes zero.
template <class Body>
void fill_state(Executor& executor,
                const Binding& state,
                const TensorType& whole,
                const StatePart& part,
                const Body& body) {
  const std::size_t element = size_bytes(state.tensor.type.dtype);
  const std::span<std::byte> bytes = executor.bytes(state);
  const auto stretch = [&](std::int64_t first, std::int64_t count) {
    return bytes.subspan(static_cast<std::size_t>(first) * element,
                         static_cast<std::size_t>(count) * element);
  };
  for_each_stretch(
      state.tensor.type,
      whole,
      part,
      [&](std::int64_t here, std::int64_t count) {
        std::ranges::fill(stretch(here, count), std::byte{0});
      },
      [&](std::int64_t first, std::int64_t here, std::int64_t count) {
        body(first, stretch(here, count));
      });
}

// How a parameter is drawn from its element `first` on.
Initial initial_of(const ParameterInit& parameter, std::int64_t first, std::uint64_t seed) {
  const Initializer& init = parameter.init;
  TESSERA_CHECK(init.mean == 0.0 || init.std == 0.0, "{}: normal with a mean", parameter.name);
  return {.key = random_key(seed, parameter.name),
          .first = static_cast<std::uint64_t>(first),
          .normal = {.std = static_cast<float>(init.std), .cut = static_cast<float>(init.cut)},
          .constant = static_cast<float>(init.mean)};
}

// Draws a parameter, a buffer or a copy of a parameter.
void draw_state(Executor& executor,
                const ParameterInit& parameter,
                const Binding& state,
                std::uint64_t seed,
                const StatePart& part) {
  for_each_stretch(
      state.tensor.type,
      parameter.type,
      part,
      [&](std::int64_t here, std::int64_t count) {
        executor.draw(state, here, count, {.normal = {.std = 0.0F}});
      },
      [&](std::int64_t first, std::int64_t here, std::int64_t count) {
        executor.draw(state, here, count, initial_of(parameter, first, seed));
      });
}

// Which tensor of the checkpoint a state is filled from; a copy from what it is a copy of. An f32
// parameter and its master are equal, but for a parameter that was rounded on its way to other
// ranks: the master is the better source of what has to be a master from now on.
TensorRole source_role(const StateBinding& binding,
                       const Program& program,
                       const CheckpointReader& checkpoint) {
  const State& state = binding.state;
  const TensorRole role = saved_role(state.role).value_or(TensorRole::kParameter);
  const bool has_master = checkpoint.find(state.parameter, TensorRole::kMaster) != nullptr;
  if (role == TensorRole::kMaster) {
    return has_master ? TensorRole::kMaster : TensorRole::kParameter;
  }
  const bool is_master = role == TensorRole::kParameter &&
                         binding.tensor.type.dtype == DType::kF32 &&
                         find_state(program, state.parameter, StateRole::kMaster) == nullptr;
  return is_master && has_master ? TensorRole::kMaster : role;
}

// Errors: kInvalidData where the checkpoint has none of this role, dtype and shape.
const ManifestTensor& require_tensor(const CheckpointReader& checkpoint,
                                     const std::string& name,
                                     TensorRole role,
                                     DType dtype,
                                     const std::vector<std::int64_t>& shape) {
  const ManifestTensor* source = checkpoint.find(name, role);
  TESSERA_REQUIRE(source != nullptr && source->dtype == dtype && source->shape == shape,
                  ErrorCode::kInvalidData,
                  "{} \"{}\": found {} in the checkpoint, expected {}",
                  to_string(role),
                  name,
                  source == nullptr ? "none" : describe(source->dtype, source->shape),
                  describe(dtype, shape));
  return *source;
}

// A read to a state in a file, which takes no more of the page cache than a piece.
TensorRead read_to_file(const Executor& executor,
                        const StateBinding& state,
                        const ManifestTensor& source,
                        std::int64_t first,
                        std::span<std::byte> bytes) {
  return {.tensor = &source,
          .first = first,
          .num_bytes = std::ssize(bytes),
          .take = [&executor, &state, bytes](std::int64_t at, std::span<const std::byte> piece) {
            const auto to = bytes.subspan(static_cast<std::size_t>(at), piece.size());
            std::ranges::copy(piece, to.begin());
            executor.to_file(state, to);
          }};
}

}  // namespace

StatePart state_part(const Mesh& mesh, std::int64_t rank, DimAxes dims) {
  StatePart part{.dims = std::move(dims),
                 .coordinate = coordinates_of(mesh, rank),
                 .slice_axes = data_axes(mesh)};
  for (const MeshAxis& axis : mesh.axes) {
    if (axis.group == AxisGroup::kTensor) {
      part.tensor_axes.push_back(axis.name);
    }
  }
  return part;
}

std::vector<ParameterInit> parameter_inits(const Graph& graph) {
  std::vector<ParameterInit> inits;
  for (const ValueKind kind : {ValueKind::kParameter, ValueKind::kBuffer}) {
    for (const ValueId id : graph.sources(kind)) {
      inits.push_back({.name = graph[id].name,
                       .init = graph[id].init,
                       .type = graph[id].type,
                       .frozen = graph[id].frozen,
                       .buffer = kind == ValueKind::kBuffer});
    }
  }
  return inits;
}

ParameterCounts count_parameters(const std::vector<ParameterInit>& parameters) {
  ParameterCounts counts;
  for (const ParameterInit& parameter : parameters) {
    const std::int64_t elements = parameter.type.num_elements();
    counts.all += parameter.buffer ? 0 : elements;
    counts.frozen += parameter.frozen ? elements : 0;
    counts.buffers += parameter.buffer ? elements : 0;
  }
  return counts;
}

void initialize_state(Executor& executor,
                      const std::vector<ParameterInit>& inits,
                      std::uint64_t seed,
                      const StatePart& part) {
  for (const StateBinding& state : executor.program().states) {
    if (is_weights(state.state.role)) {
      draw_state(executor, find_parameter(inits, state.state.parameter), state, seed, part);
      executor.to_file(state, executor.bytes(state));
    }
  }
}

void load_weights(Executor& executor,
                  const std::vector<ParameterInit>& parameters,
                  const WeightSource& weights,
                  const StatePart& part) {
  const Program& program = executor.program();
  std::vector<WeightRead> reads;
  std::vector<const Binding*> filled;
  for (const StateBinding& state : program.states) {
    const std::string& name = state.state.parameter;
    if (!is_weights(state.state.role) || is_adapter(name)) {
      continue;
    }
    const TensorType& whole = find_parameter(parameters, name).type;
    fill_state(executor, state, whole, part, [&](std::int64_t first, std::span<std::byte> bytes) {
      reads.push_back(
          {.parameter = name, .dtype = state.tensor.type.dtype, .first = first, .out = bytes});
    });
    filled.push_back(&state);
  }
  weights.load(reads);
  for (const Binding* state : filled) {
    executor.state_to_device(*state);
  }
}

void load_state(Executor& executor,
                const std::vector<ParameterInit>& parameters,
                const CheckpointReader& checkpoint,
                const StatePart& part,
                int threads) {
  const Program& program = executor.program();
  std::vector<TensorRead> reads;
  std::vector<const Binding*> filled;
  for (const StateBinding& state : program.states) {
    if (!saved_role(state.state.role) && !is_weights(state.state.role)) {
      continue;
    }
    const std::string& name = state.state.parameter;
    const DType dtype = state.tensor.type.dtype;
    const TensorType& whole = find_parameter(parameters, name).type;
    const TensorRole role = source_role(state, program, checkpoint);
    const ManifestTensor& source = require_tensor(checkpoint, name, role, dtype, whole.bounds());
    fill_state(executor, state, whole, part, [&](std::int64_t first, std::span<std::byte> bytes) {
      reads.push_back(executor.file_of(state) ? read_to_file(executor, state, source, first, bytes)
                                              : TensorRead{&source, first, bytes});
    });
    filled.push_back(&state);
  }
  checkpoint.load(reads);
  for (const StateBinding& state : program.states) {
    if (state.state.role == StateRole::kSecondary) {
      round_as_gathered(state.state.wire,
                        {.dtype = state.tensor.type.dtype,
                         .data = executor.bytes(state).data(),
                         .count = state.tensor.type.num_elements()},
                        threads);
    }
  }
  for (const Binding* state : filled) {
    executor.state_to_device(*state);
  }
}

void load_rounded(Executor& executor, const CheckpointReader& checkpoint) {
  checkpoint.load({});  // checks the files
  constexpr std::size_t kBlock = std::size_t{1} << 20U;
  std::vector<float> block;
  for (const StateBinding& state : executor.program().states) {
    if (!is_of_model(state.state.role)) {
      continue;
    }
    const TensorType& type = state.tensor.type;
    const TensorRole role = *saved_role(state.state.role);
    const DType saved = role == TensorRole::kBuffer ? type.dtype : DType::kF32;
    const ManifestTensor& source =
        require_tensor(checkpoint, state.name, role, saved, type.bounds());
    const std::span<std::byte> bytes = executor.bytes(state);
    if (role == TensorRole::kBuffer) {
      checkpoint.read(source.name, role, 0, bytes);
      executor.state_to_device(state);
      continue;
    }
    auto* const rounded = reinterpret_cast<BFloat16*>(bytes.data());
    const std::size_t count = bytes.size() / sizeof(BFloat16);
    for (std::size_t done = 0; done < count; done += kBlock) {
      block.resize(std::min(kBlock, count - done));
      checkpoint.read(state.name,
                      TensorRole::kParameter,
                      static_cast<std::int64_t>(done),
                      std::as_writable_bytes(std::span(block)));
      std::ranges::transform(block, rounded + done, to_bfloat16);
    }
    executor.state_to_device(state);
  }
}

}  // namespace tessera
