// Training state under random layouts: saved by every rank of one, loaded by every rank of the
// next. Ranks take turns, since none needs another.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/null/null_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/checkpoint/require_model.h"
#include "tessera/mesh/placement.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/models/llama/llama.h"
#include "tessera/models/test_experts.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/plan/run_layout.h"
#include "tessera/runtime/executor.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

constexpr std::int64_t kExperts = 12;

ModelDescription small_model() {
  return with_experts(
      describe_llama({.dim = 24, .layers = 2, .heads = 12, .kv_heads = 12, .ffn = 13, .vocab = 67}),
      kExperts);
}

bool holds_gradients(const MeshAxis& axis) {
  return axis.group == AxisGroup::kData || axis.group == AxisGroup::kContext;
}

std::int64_t tensor_degree(const Mesh& mesh) {
  std::int64_t degree = 1;
  for (const MeshAxis& axis : mesh.axes) {
    degree *= axis.group == AxisGroup::kTensor ? axis.size : 1;
  }
  return degree;
}

// The most ranks of data and context, innermost first, that the experts divide by.
std::int64_t expert_degree(const Mesh& mesh) {
  std::int64_t degree = 1;
  for (const MeshAxis& axis : mesh.axes) {
    if (holds_gradients(axis)) {
      const std::int64_t part = std::gcd(kExperts / degree, axis.size);
      degree *= part;
      if (part < axis.size) {
        break;
      }
    }
  }
  return degree;
}

// Layouts of up to 24 ranks whose tensor degree divides the model's 12 heads. The axes of data and
// context cut experts in two of three.
std::vector<RunLayout> random_layouts(std::size_t count, std::uint64_t seed) {
  std::vector<RunLayout> layouts;
  for (; layouts.size() < count; ++seed) {
    RandomMesh random = random_mesh(seed);
    if (random.mesh.num_ranks() > 24 || random.degrees.pipeline > 1 ||
        12 % tensor_degree(random.mesh) != 0) {
      continue;
    }
    if (layouts.size() % 3 != 0) {
      random.degrees.expert = expert_degree(random.mesh);
      random.mesh = make_mesh(random.cluster, random.degrees);
    }
    // Each divides the next.
    const std::vector<std::int64_t> degrees = data_degrees(random.mesh);
    const auto draw = [&](std::uint64_t which, std::int64_t most) {
      std::vector<std::int64_t> allowed;
      std::ranges::copy_if(degrees, std::back_inserter(allowed), [&](auto d) { return d <= most; });
      return allowed[static_cast<std::size_t>(uniform(seed, 1000 + which) *
                                              static_cast<double>(allowed.size()))];
    };
    Placement placement;
    placement.optimizer = draw(0, degrees.back());
    placement.grad = draw(1, placement.optimizer);
    placement.param = draw(2, placement.grad);
    placement.secondary = draw(3, placement.param);
    layouts.push_back({.mesh = random.mesh, .placement = placement});
  }
  return layouts;
}

DimAxes state_dims(const Mesh& mesh) {
  DimAxes dims = dim_axes(mesh, false);
  dims.erase("batch");
  return dims;
}

// Byte `byte` of element `index` of a global tensor.
std::byte content(const std::string& tensor, std::int64_t index, std::size_t byte) {
  const std::uint64_t key = random_key(static_cast<std::uint64_t>(byte), tensor);
  return static_cast<std::byte>(key + 31 * static_cast<std::uint64_t>(index) +
                                (static_cast<std::uint64_t>(index) >> 7U));
}

// One rank's state, and what it has to hold.
class Rank {
 public:
  Rank(const RunLayout& layout,
       std::int64_t rank,
       const Program& program,
       const std::vector<ParameterInit>& parameters)
      : layout_(layout),
        rank_(rank),
        parameters_(parameters),
        part_(state_part(layout.mesh, rank, state_dims(layout.mesh))),
        backend_(make_null_backend()),
        executor_(program, *backend_) {}

  void fill() {
    for (const StateBinding& state : executor_.program().states) {
      if (category(state) != Category::kGradient) {
        std::ranges::copy(expected(state), executor_.bytes(state).begin());
      }
    }
  }

  void load(const CheckpointReader& checkpoint) {
    for (const StateBinding& state : executor_.program().states) {
      std::ranges::fill(executor_.bytes(state), std::byte{0xa5});
    }
    load_state(executor_, parameters_, checkpoint, part_);
    for (const StateBinding& state : executor_.program().states) {
      if (category(state) != Category::kGradient) {
        EXPECT_TRUE(std::ranges::equal(executor_.bytes(state), expected(state)))
            << state.name << " of rank " << rank_;
      }
    }
  }

  std::vector<CheckpointTensor> tensors() { return state_tensors(executor_, parameters_, part_); }

 private:
  Category category(const Binding& state) const {
    return executor_.program()[state.tensor.buffer].category;
  }

  // By coordinates, element by element.
  std::vector<std::byte> expected(const StateBinding& state) const {
    const StateRole role = state.state.role;
    const bool is_moment = role == StateRole::kMoment1 || role == StateRole::kMoment2;
    const bool is_master = role == StateRole::kMaster;
    const std::string& parameter = state.state.parameter;
    const TensorType& type = state.tensor.type;
    // An f32 parameter and its master are the same, in bf16 they are not.
    const bool same = !is_master || compute_dtype(parameter) == DType::kF32;
    const std::string tensor = is_moment || !same ? state.name : parameter;
    const std::int64_t degree = is_moment || is_master          ? layout_.placement.optimizer
                                : role == StateRole::kSecondary ? layout_.placement.secondary
                                                                : layout_.placement.param;
    const bool sliced = type.num_dims() == 1 && type.dims[0].name == "slice";
    const std::int64_t begin = sliced ? slice_place(parameter, degree) * type.num_elements() : 0;
    std::vector<std::byte> bytes;
    for (std::int64_t i = 0; i < type.num_elements(); ++i) {
      const std::int64_t index = place(parameter, begin + i);
      for (std::size_t b = 0; b < size_bytes(type.dtype); ++b) {
        bytes.push_back(index < 0 ? std::byte{0} : content(tensor, index, b));
      }
    }
    return bytes;
  }

  DType compute_dtype(const std::string& parameter) const { return init(parameter).type.dtype; }

  const ParameterInit& init(const std::string& parameter) const {
    const auto found = std::ranges::find(parameters_, parameter, &ParameterInit::name);
    TESSERA_CHECK(found != parameters_.end(), "no parameter {}", parameter);
    return *found;
  }

  // Which element of a parameter is element `local` of this rank's part of it; -1: padding.
  std::int64_t place(const std::string& parameter, std::int64_t local) const {
    std::int64_t index = 0;
    std::int64_t stride = 1;
    bool pads = false;
    const std::vector<Dim>& dims = init(parameter).type.dims;
    for (std::size_t d = dims.size(); d-- > 0;) {
      const std::string& name = dims[d].name;
      const Shard shard = shard_of(name);
      const std::int64_t bound = (dims[d].bound + shard.count - 1) / shard.count;
      const std::int64_t at = local % bound + shard.place * bound;
      pads = pads || at >= dims[d].bound;
      index += at * stride;
      stride *= dims[d].bound;
      local /= bound;
    }
    return local == 0 && !pads ? index : -1;
  }

  // A place among so many.
  struct Shard {
    std::int64_t count = 1;
    std::int64_t place = 0;
  };

  // Among the ranks along the axes that `is_along` says: the first one is the most significant
  // digit.
  template <class IsAlong>
  Shard shard_along(const IsAlong& is_along) const {
    const std::vector<std::int64_t> coordinates = layout_.mesh.coordinates(rank_);
    Shard shard;
    for (std::size_t i = 0; i < coordinates.size(); ++i) {
      const MeshAxis& axis = layout_.mesh.axes[i];
      if (is_along(axis)) {
        shard.count *= axis.size;
        shard.place = shard.place * axis.size + coordinates[i];
      }
    }
    return shard;
  }

  // Of dims of that name.
  Shard shard_of(const std::string& dim) const {
    const bool by_tensor = dim == "heads" || dim == "kv_heads" || dim == "mlp" || dim == "vocab";
    return shard_along([&](const MeshAxis& axis) {
      return by_tensor ? axis.group == AxisGroup::kTensor : dim == "expert" && axis.expert;
    });
  }

  // Which slice of a parameter's state it holds that is cut over the first `degree` ranks of data
  // and context: of those along which the parameter itself is not cut.
  std::int64_t slice_place(const std::string& parameter, std::int64_t degree) const {
    const bool has_experts = init(parameter).type.dims[0].name == "expert";
    std::int64_t reached = 1;
    return shard_along([&](const MeshAxis& axis) {
             if (!holds_gradients(axis) || reached == degree) {
               return false;
             }
             reached *= axis.size;
             return !(has_experts && axis.expert);
           })
        .place;
  }

  const RunLayout& layout_;
  std::int64_t rank_;
  const std::vector<ParameterInit>& parameters_;
  StatePart part_;
  std::unique_ptr<Backend> backend_;
  Executor executor_;
};

struct Types {
  DType compute = DType::kF32;
  DType moments = DType::kF32;
};

// A sequence on each of the ranks that cut states.
Program compile(const ModelDescription& model, const Types& types, const RunLayout& layout) {
  const StateAxes state = state_axes(layout);
  DimAxes dims = state_dims(layout.mesh);
  dims["batch"] = {.axes = state.axes};
  return compile_training(training_graph(model, num_ranks(state.axes), 16, types.compute),
                          {.update = {.moments = types.moments,
                                      .num_microbatches = 2,
                                      .state = state,
                                      .dims = std::move(dims)}});
}

class ShardedStateTest : public testing::TestWithParam<Types> {};

INSTANTIATE_TEST_SUITE_P(DTypes,
                         ShardedStateTest,
                         testing::Values(Types{DType::kF32, DType::kF32},
                                         Types{DType::kBF16, DType::kF32},
                                         Types{DType::kBF16, DType::kBF16}),
                         [](const auto& types) {
                           return format("{}_moments_{}",
                                         name(types.param.compute),
                                         name(types.param.moments));
                         });

TEST_P(ShardedStateTest, EveryLayoutReadsEveryOther) {
  const TestDirectory root;
  const ModelDescription model = small_model();
  const std::vector<ParameterInit> parameters =
      parameter_inits(training_graph(model, 1, 16, GetParam().compute));
  std::vector<RunLayout> layouts = random_layouts(8, GetParam().compute == DType::kF32 ? 1 : 500);
  layouts.insert(layouts.begin() + 4, RunLayout{});  // one rank
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const RunLayout& layout = layouts[i];
    SCOPED_TRACE(format("layout {}", i));
    const Program program = compile(model, GetParam(), layout);
    const std::int64_t num_ranks = layout.mesh.num_ranks();
    const std::filesystem::path directory =
        checkpoint_directory(root.path(), static_cast<std::int64_t>(i));
    std::vector<std::unique_ptr<CheckpointSaver>> savers;
    for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
      Rank state(layout, rank, program, parameters);
      if (i == 0) {
        state.fill();
      } else {
        const CheckpointReader before(
            checkpoint_directory(root.path(), static_cast<std::int64_t>(i) - 1),
            {.verify = Verify::kOnLoad, .rank = rank, .num_ranks = num_ranks});
        require_model(before, model.json, model_tensors(parameters, GetParam().moments));
        state.load(before);
      }
      savers.push_back(std::make_unique<CheckpointSaver>(
          SaverOptions{.rank = rank, .num_ranks = num_ranks, .threads = 2, .launch = "launch"}));
      savers.back()->start(
          directory, {.step = static_cast<std::int64_t>(i), .model = model.json}, state.tensors());
    }
    for (const auto& saver : savers) {
      ASSERT_EQ(saver->wait(), SaveStatus::kWritten);
    }
    for (const auto& saver : savers) {
      saver->finish();
    }
    CheckpointReader(directory).verify();
  }
}

}  // namespace
}  // namespace tessera
