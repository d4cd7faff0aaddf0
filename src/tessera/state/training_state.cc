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
#include "tessera/ops/collective/collective.h"

namespace tessera {
namespace {

// What a state is to a checkpoint; nothing where it is a copy, or gone when the step ends.
std::optional<TensorRole> saved_role(StateRole role) {
  switch (role) {
    case StateRole::kParameter:
      return TensorRole::kParameter;
    case StateRole::kMoment1:
      return TensorRole::kMoment1;
    case StateRole::kMoment2:
      return TensorRole::kMoment2;
    case StateRole::kMaster:
      return TensorRole::kMaster;
    case StateRole::kBuffer:
      return TensorRole::kBuffer;
    case StateRole::kSecondary:
    case StateRole::kGradient:
    case StateRole::kSum:
    case StateRole::kCache:
      return std::nullopt;
  }
  return std::nullopt;
}

// Whether a state is weights: those of its parameter, a copy of them, or a buffer.
bool is_weights(StateRole role) {
  return is_of_model(role) || role == StateRole::kMaster || role == StateRole::kSecondary;
}

const ParameterInit& find_parameter(const std::vector<ParameterInit>& parameters,
                                    const std::string& name) {
  const auto found = std::ranges::find(parameters, name, &ParameterInit::name);
  TESSERA_CHECK(found != parameters.end(), "state of no parameter: {}", name);
  return *found;
}

// Where a state's elements lie among those of the rank's part of its tensor.
struct StateRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;  // without the padding behind
};

// A rank's part of a tensor, and the axes along which that is cut into slices.
struct SlicedPart {
  SlicedPart(const TensorType& whole, const StatePart& place)
      : tensor(whole, place.dims, place.coordinate),
        axes(place.slice_axes),
        coordinate(place.coordinate) {
    const AxisSizes cut_by = axes_of(whole, place.dims);
    std::erase_if(axes, [&](const AxisSize& axis) { return contains(cut_by, axis); });
  }

  // Of the rank's slice of `degree`, which has `size` elements.
  StateRange slice(std::int64_t degree, std::int64_t size) const {
    const std::int64_t begin = slice_index(axes, degree, coordinate) * size;
    return {.begin = begin,
            .count = std::clamp<std::int64_t>(tensor.num_elements() - begin, 0, size)};
  }

  StateRange all() const { return {.begin = 0, .count = tensor.num_elements()}; }

  std::int64_t padded() const { return padded_elements(tensor.num_elements(), num_ranks(axes)); }

  TensorPart tensor;
  AxisSizes axes;
  const CoordinateOf& coordinate;
};

StateRange range_of(const SlicedPart& part, const TensorType& state) {
  if (state.num_dims() != 1 || state.dims[0].name != kSliceDim) {
    return part.all();
  }
  const std::int64_t size = state.dims[0].bound;
  return part.slice(part.padded() / size, size);
}

// Of a rank's slice of all N: the smallest that a state can be kept in.
StateRange saved_range(const SlicedPart& part) {
  const std::int64_t n = num_ranks(part.axes);
  return n == 1 ? part.all() : part.slice(n, part.padded() / n);
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

// Whether another rank of the tensor axes holds the same part of this tensor and saves it.
bool saved_elsewhere(const TensorType& whole, const StatePart& part) {
  const AxisSizes cut_by = axes_of(whole, part.dims);
  return std::ranges::any_of(part.tensor_axes, [&](const std::string& axis) {
    return std::ranges::find(cut_by, axis, &AxisSize::name) == cut_by.end() &&
           part.coordinate(axis) != 0;
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

class StateInitializer {
 public:
  StateInitializer(Executor& executor, std::uint64_t seed, const StatePart& part)
      : executor_(executor), seed_(seed), part_(part) {}

  // The parameter or buffer, and its master and secondary copy where it has them.
  void initialize(const ParameterInit& parameter) {
    const Program& program = executor_.program();
    write(parameter, find_binding(program.states, parameter.name));
    for (const StateRole copy : {StateRole::kMaster, StateRole::kSecondary}) {
      if (const StateBinding* const state = find_state(program, parameter.name, copy)) {
        write(parameter, *state);
      }
    }
  }

 private:
  void write(const ParameterInit& parameter, const Binding& state) {
    for_each_stretch(
        state.tensor.type,
        parameter.type,
        part_,
        [&](std::int64_t here, std::int64_t count) {
          executor_.draw(state, here, count, {.normal = {.std = 0.0F}});
        },
        [&](std::int64_t first, std::int64_t here, std::int64_t count) {
          executor_.draw(state, here, count, initial_of(parameter, first, seed_));
        });
  }

  Executor& executor_;
  std::uint64_t seed_;
  const StatePart& part_;
};

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
        saved_elsewhere(whole, part)) {
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

}  // namespace

StatePart state_part(const Mesh& mesh, std::int64_t rank, DimAxes dims) {
  StatePart part{
      .dims = std::move(dims),
      .coordinate =
          [mesh, rank](std::string_view axis) {
            const auto found = std::ranges::find(mesh.axes, axis, &MeshAxis::name);
            TESSERA_CHECK(found != mesh.axes.end(), "no axis {}", axis);
            return mesh.coordinates(rank)[static_cast<std::size_t>(found - mesh.axes.begin())];
          },
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
  StateInitializer initializer(executor, seed, part);
  for (const ParameterInit& parameter : inits) {
    initializer.initialize(parameter);
  }
}

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
                                            const StatePart& part) {
  std::vector<CheckpointTensor> tensors;
  for_each_saved(program,
                 parameters,
                 part,
                 part,
                 [&](CheckpointTensor tensor, const Binding& /*state*/, std::int64_t /*first*/) {
                   tensors.push_back(std::move(tensor));
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
  for_each_saved(executor.program(),
                 parameters,
                 other,
                 holder,
                 [&](CheckpointTensor tensor, const Binding& state, std::int64_t first) {
                   tensor.data = executor.state_to_host(state, first, tensor.slice->count);
                   tensors.push_back(std::move(tensor));
                 });
  return tensors;
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
      reads.push_back({.tensor = &source, .first = first, .out = bytes});
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
