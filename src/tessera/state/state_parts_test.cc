// States of a model that two pipeline ranks share out, each over data and tensor ranks. Ranks take
// turns, since none needs another. The programs are of the whole model, without code and without
// the states of the other half.

#include "tessera/state/state_parts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/checkpoint/require_model.h"
#include "tessera/mesh/placement.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/models/llama/llama.h"
#include "tessera/models/test_experts.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/executor.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kSeed = 7;

Plan plan_of(const Mesh& mesh, const char* placement) {
  Plan plan = {.model = with_experts(
                   describe_llama(
                       {.dim = 24, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 36, .vocab = 66}),
                   4),
               .sequence_length = 8,
               .dtype = DType::kBF16};
  plan.layout.mesh = mesh;
  plan.layout.placement = preset(placement, mesh).placement;
  return plan;
}

Mesh mesh_of(const MeshDegrees& degrees) {
  return make_mesh(test_cluster({2, 2, 2}), degrees);
}

// Both halves keep the buffer "mean".
bool is_in_half(const std::string& parameter, std::size_t half) {
  const bool is_in_first =
      parameter.starts_with("layers.0.") || parameter.starts_with("tok_embeddings");
  return parameter == "mean" || is_in_first == (half == 0);
}

using Keeps = std::function<bool(const StateBinding& state)>;

Programs with_states(Programs programs, const Keeps& keeps) {
  Program& step = programs.step;
  std::erase_if(step.states, [&](const StateBinding& state) { return !keeps(state); });
  step.segments.clear();
  step.calls.clear();
  step.inputs.clear();
  step.scalars.clear();
  step.outputs.clear();
  return programs;
}

// A run of the model, in halves where the mesh has two pipeline ranks.
struct TestStates {
  explicit TestStates(const Mesh& mesh, const char* placement = "fsdp")
      : plan(plan_of(mesh, placement)),
        parameters(parameter_inits(step_graph(plan))),
        programs(halves([](std::size_t half, const StateBinding& state) {
          return is_in_half(state.state.parameter, half);
        })) {}

  RunPrograms halves(
      const std::function<bool(std::size_t half, const StateBinding& state)>& keeps) const {
    const Programs whole = compile(plan, cpu_target());
    const std::int64_t places = pipeline_place(plan.layout.mesh, num_ranks() - 1) + 1;
    if (places == 1) {
      return with_states(whole, [](const StateBinding&) { return true; });
    }
    std::vector<Programs> list;
    for (std::size_t half = 0; half < 2; ++half) {
      list.push_back(
          with_states(whole, [&](const StateBinding& state) { return keeps(half, state); }));
    }
    return {plan.layout.mesh, std::move(list)};
  }

  std::int64_t num_ranks() const { return plan.layout.mesh.num_ranks(); }

  StatePart part(std::int64_t rank) const { return StateParts(plan.layout, programs).of(rank); }

  // body(executor) as each rank.
  void for_each_rank(const std::function<void(std::int64_t rank, Executor& executor)>& body) const {
    for (std::int64_t rank = 0; rank < num_ranks(); ++rank) {
      const std::unique_ptr<Backend> backend = make_cpu_backend(1);
      Executor executor(programs.of(rank).step, *backend);
      body(rank, executor);
    }
  }

  // Fills the states of every rank, and saves them.
  void save(const std::filesystem::path& directory,
            const std::function<void(std::int64_t rank, Executor& executor)>& fill) const {
    std::vector<std::unique_ptr<CheckpointSaver>> savers;
    for_each_rank([&](std::int64_t rank, Executor& executor) {
      fill(rank, executor);
      savers.push_back(std::make_unique<CheckpointSaver>(
          SaverOptions{.rank = rank,
                       .num_ranks = num_ranks(),
                       .launch = "launch",
                       .tensors = model_tensors(parameters, plan.optimizer.moments)}));
      savers.back()->start(directory,
                           {.step = checkpoint_step(directory).value(), .model = plan.model.json},
                           state_tensors(executor, parameters, part(rank)));
    });
    for (const auto& saver : savers) {
      ASSERT_EQ(saver->wait(), SaveStatus::kWritten);
    }
    for (const auto& saver : savers) {
      saver->finish();
    }
  }

  void save_loaded(const std::filesystem::path& from, const std::filesystem::path& to) const {
    const CheckpointReader reader(from);
    require_model(reader, plan.model.json, model_tensors(parameters, plan.optimizer.moments));
    save(to, [&](std::int64_t rank, Executor& executor) {
      load_state(executor, parameters, reader, part(rank));
    });
  }

  Plan plan;
  std::vector<ParameterInit> parameters;
  RunPrograms programs;
};

std::vector<std::byte> bytes_of(Executor& executor, const std::string& state) {
  const std::span<const std::byte> bytes =
      executor.bytes(find_binding(executor.program().states, state));
  return {bytes.begin(), bytes.end()};
}

// Other bytes in each state.
void fill_at_random(Executor& executor) {
  for (const StateBinding& state : executor.program().states) {
    std::uint64_t i = 0;
    for (std::byte& byte : executor.bytes(state)) {
      byte = static_cast<std::byte>(random_key(i++, state.name));
    }
  }
}

Mesh mesh_of_halves() {
  return mesh_of({.data = 2, .tensor = 2, .pipeline = 2});
}

Mesh mesh_of_whole() {
  return mesh_of({.data = 2, .tensor = 2});
}

// By name and index alone: as without a pipeline, on the rank with the same other coordinates.
TEST(PipelineStates, StartAsThoseOfTheWholeModel) {
  for (const char* placement : {"ddp", "zero1", "fsdp"}) {
    SCOPED_TRACE(placement);
    const TestStates halves(mesh_of_halves(), placement);
    const TestStates whole(mesh_of_whole(), placement);
    std::size_t num_states = 0;
    halves.for_each_rank([&](std::int64_t rank, Executor& executor) {
      initialize_state(executor, halves.parameters, kSeed, halves.part(rank));
      const std::unique_ptr<Backend> backend = make_cpu_backend(1);
      Executor expected(whole.programs.of(rank % 4).step, *backend);
      initialize_state(expected, whole.parameters, kSeed, whole.part(rank % 4));
      for (const StateBinding& state : executor.program().states) {
        EXPECT_EQ(bytes_of(executor, state.name), bytes_of(expected, state.name))
            << state.name << " of rank " << rank;
        ++num_states;
      }
    });
    EXPECT_GT(num_states, 4 * whole.programs[0].step.states.size());
  }
}

TEST(PipelineStates, AreSavedByTwoAndLoadedByOneAndBack) {
  const TestDirectory root;
  const TestStates one(mesh_of({}));
  const TestStates halves(mesh_of_halves());
  const TestStates whole(mesh_of_whole(), "zero1");
  const auto path = [&](std::int64_t number) { return checkpoint_directory(root.path(), number); };
  one.save(path(1), [](std::int64_t, Executor& executor) { fill_at_random(executor); });
  halves.save_loaded(path(1), path(2));
  whole.save_loaded(path(2), path(3));
  halves.save_loaded(path(3), path(4));
  one.save_loaded(path(4), path(5));
  const CheckpointReader first(path(1));
  const CheckpointReader last(path(5));
  EXPECT_GT(first.tensors().size(), 4 * 10U);
  for (const ManifestTensor& tensor : first.tensors()) {
    EXPECT_EQ(last.read(tensor.name, tensor.role), first.read(tensor.name, tensor.role))
        << quote(tensor.name, tensor.role);
  }
}

std::set<std::string> saved_names(const TestStates& states, std::int64_t rank) {
  std::set<std::string> names;
  for (const CheckpointTensor& tensor :
       saved_tensors(states.programs.of(rank).step, states.parameters, states.part(rank))) {
    names.insert(tensor.name);
  }
  return names;
}

TEST(PipelineStates, OfSeveralAreSavedByTheFirst) {
  const TestStates halves(mesh_of_halves());
  EXPECT_THAT(saved_names(halves, 0), AllOf(Contains("mean"), Not(Contains("bias"))));
  EXPECT_THAT(saved_names(halves, 4), AllOf(Not(Contains("mean")), Contains("bias")));
}

// Weights of which it is noted what is read.
class NotedWeights : public WeightSource {
 public:
  explicit NotedWeights(std::set<std::string>& names) : names_(names) {}

  void load(std::span<const WeightRead> reads) const override {
    for (const WeightRead& read : reads) {
      names_.insert(read.parameter);
    }
  }

  void read(const WeightRead& read) const override { names_.insert(read.parameter); }

 private:
  std::set<std::string>& names_;
};

TEST(PipelineStates, ReadOnlyTheirOwnWeights) {
  const TestStates halves(mesh_of_halves(), "ddp");  // where each rank has a part of each
  halves.for_each_rank([&](std::int64_t rank, Executor& executor) {
    std::set<std::string> names;
    load_weights(executor, halves.parameters, NotedWeights(names), halves.part(rank));
    std::set<std::string> expected;
    for (const ParameterInit& parameter : halves.parameters) {
      if (is_in_half(parameter.name, rank < 4 ? 0 : 1)) {
        expected.insert(parameter.name);
      }
    }
    EXPECT_EQ(names, expected);
  });
}

constexpr const char* kLost = "layers.1.attention.wo.weight";

TEST(PipelineStates, AreRefusedWhereATensorIsNobodys) {
  const TestDirectory root;
  TestStates halves(mesh_of_halves());
  require_each_tensor_once(halves.programs, halves.parameters, DType::kF32);
  halves.programs = halves.halves([](std::size_t half, const StateBinding& state) {
    return is_in_half(state.state.parameter, half) &&
           !(state.state.parameter == kLost && state.state.role == StateRole::kMoment2);
  });
  EXPECT_THAT(
      error_of(ErrorCode::kInternal,
               [&] { require_each_tensor_once(halves.programs, halves.parameters, DType::kF32); }),
      HasSubstr(format("tensor '{}' (moment2) of the model is kept by none of 2 pipeline "
                       "ranks",
                       kLost)));
  const auto save = [&] {
    halves.save(checkpoint_directory(root.path(), 1),
                [](std::int64_t, Executor& executor) { fill_at_random(executor); });
  };
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, save),
              HasSubstr(format("tensor '{}' (moment2): found none in the ranks' parts, expected "
                               "f32 (24, 4, 6)",
                               kLost)));
  EXPECT_FALSE(std::filesystem::exists(checkpoint_directory(root.path(), 1)));
}

TEST(PipelineStates, AreRefusedWhereATensorIsOfTwo) {
  TestStates halves(mesh_of_halves());
  halves.programs = halves.halves([](std::size_t half, const StateBinding& state) {
    return is_in_half(state.state.parameter, half) || state.state.parameter == kLost;
  });
  EXPECT_THAT(
      error_of(ErrorCode::kInternal,
               [&] { require_each_tensor_once(halves.programs, halves.parameters, DType::kF32); }),
      HasSubstr(format("tensor '{}' is kept by pipeline ranks 0 and 1, expected by one of "
                       "them",
                       kLost)));
}

// As programs of another model would keep it.
TEST(PipelineStates, AreRefusedWhereATensorIsNotOfTheModel) {
  const TestStates halves(mesh_of_halves());
  std::vector<ParameterInit> frozen = halves.parameters;
  std::ranges::find(frozen, kLost, &ParameterInit::name)->frozen = true;
  EXPECT_THAT(error_of(ErrorCode::kInternal,
                       [&] { require_each_tensor_once(halves.programs, frozen, DType::kF32); }),
              AllOf(HasSubstr(format("tensor '{}' (moment1) is kept by pipeline rank 1", kLost)),
                    HasSubstr("no checkpoint of the model has it")));
}

}  // namespace
}  // namespace tessera
