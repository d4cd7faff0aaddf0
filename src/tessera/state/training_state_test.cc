#include "tessera/state/training_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/format.h"
#include "tessera/base/half.h"
#include "tessera/base/test_directory.h"
#include "tessera/models/llama/llama.h"
#include "tessera/models/test_experts.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

using testing::Contains;
using testing::Each;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

struct Options {
  std::int64_t layers = 2;
  std::int64_t microbatch = 1;
  bool recompute = false;
  DType dtype = DType::kF32;
  bool group_gemms = true;
  std::uint64_t seed = 42;
  int threads = 1;
  bool experts = false;  // and a buffer
};

// The state of a small Llama before its first step.
class State {
 public:
  explicit State(const Options& options)
      : model_(describe(options)),
        backend_(make_cpu_backend(options.threads)),
        program_(compile(options)),
        executor_(program_, *backend_),
        inits_(parameter_inits(training_graph(model_, options.microbatch, 16, options.dtype))) {
    initialize_state(executor_, inits_, options.seed);
  }

  static ModelDescription describe(const Options& options) {
    ModelDescription model = describe_llama(
        {.dim = 64, .layers = options.layers, .heads = 4, .kv_heads = 2, .ffn = 160, .vocab = 300});
    return options.experts ? with_experts(std::move(model), 8) : model;
  }

  Executor& executor() { return executor_; }

  const std::vector<ParameterInit>& inits() const { return inits_; }

  std::vector<CheckpointTensor> tensors() { return state_tensors(executor_, inits_); }

  template <class T = float>
  std::vector<T> values(const std::string& name) {
    const std::span<std::byte> bytes = executor_.bytes(find_binding(program_.states, name));
    const auto* first = reinterpret_cast<const T*>(bytes.data());
    return {first, first + bytes.size() / sizeof(T)};
  }

  std::vector<std::string> parameters() const {
    std::vector<std::string> names;
    for (const Binding& state : program_.states) {
      if (program_[state.tensor.buffer].category == Category::kParameter) {
        names.push_back(state.name);
      }
    }
    return names;
  }

 private:
  Program compile(const Options& options) {
    const Plan plan = {
        .model = model_,
        .sequence_length = 16,
        .microbatch = options.microbatch,
        .num_microbatches = 4 / options.microbatch,
        .dtype = options.dtype,
        .passes = {.recompute = options.recompute ? recompute_all() : RecomputeRules(),
                   .group_gemms = options.group_gemms},
        .threads = options.threads};
    return tessera::compile(plan, cpu_target()).step;
  }

  ModelDescription model_;
  std::unique_ptr<Backend> backend_;
  Program program_;
  Executor executor_;
  std::vector<ParameterInit> inits_;
};

struct Moments {
  double mean = 0.0;
  double std = 0.0;
  double largest = 0.0;  // absolute
};

Moments moments(const std::vector<float>& values) {
  Moments result;
  double squares = 0.0;
  for (const float value : values) {
    result.mean += double{value};
    squares += double{value} * double{value};
    result.largest = std::max(result.largest, std::abs(double{value}));
  }
  const auto count = static_cast<double>(values.size());
  result.mean /= count;
  result.std = std::sqrt(squares / count - result.mean * result.mean);
  return result;
}

// Four standard errors of mean and standard deviation.
void expect_normal(const std::vector<float>& values, double std) {
  const Moments found = moments(values);
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(found.mean, 0.0, 4.0 * std / std::sqrt(count));
  EXPECT_NEAR(found.std, std, 4.0 * std / std::sqrt(2.0 * count));
}

// The rules of TorchTitan's Llama 3.
TEST(InitialState, HasTheStatedDistributions) {
  State state({});
  expect_normal(state.values("tok_embeddings.weight"), 1.0);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = format("layers.{}.", layer);
    for (const char* name : {"attention.wq", "attention.wk", "attention.wv", "feed_forward.w1"}) {
      SCOPED_TRACE(prefix + name);
      expect_normal(state.values(prefix + name + ".weight"), 0.02);
    }
    for (const char* name : {"attention.wo", "feed_forward.w2", "feed_forward.w3"}) {
      SCOPED_TRACE(prefix + name);
      expect_normal(state.values(prefix + name + ".weight"), 0.02 / std::sqrt(2.0 * (layer + 1)));
    }
    EXPECT_THAT(state.values(prefix + "attention_norm.weight"), Each(1.0F));
    EXPECT_THAT(state.values(prefix + "ffn_norm.weight"), Each(1.0F));
  }
  EXPECT_THAT(state.values("norm.weight"), Each(1.0F));
}

// Cut at 3 standard deviations, which lowers the standard deviation by 1.3 %.
TEST(InitialState, HeadIsCut) {
  State state({});
  const double std = 1.0 / std::sqrt(64.0);
  const std::vector<float> head = state.values("output.weight");
  expect_normal(head, 0.98658 * std);
  EXPECT_LE(moments(head).largest, 3.0 * std);
  EXPECT_GT(moments(head).largest, 2.7 * std);
}

TEST(InitialState, DependsOnNamesAndSeedAlone) {
  State base({});
  const std::vector<Options> others = {
      {.microbatch = 4}, {.recompute = true}, {.group_gemms = false}, {.threads = 2}};
  for (const Options& options : others) {
    State other(options);
    EXPECT_THAT(other.parameters(), UnorderedElementsAreArray(base.parameters()));
    for (const std::string& name : base.parameters()) {
      EXPECT_EQ(other.values(name), base.values(name)) << name;
    }
  }
  // A deeper model starts with the same weights where it has the same names.
  State deeper({.layers = 3});
  for (const std::string& name : base.parameters()) {
    EXPECT_EQ(deeper.values(name), base.values(name)) << name;
  }
}

TEST(InitialState, DiffersBySeedAndName) {
  State base({});
  State other({.seed = 43});
  EXPECT_NE(other.values("output.weight"), base.values("output.weight"));
  EXPECT_NE(base.values("layers.0.attention.wk.weight"),
            base.values("layers.0.attention.wv.weight"));
  EXPECT_NE(base.values("layers.0.attention.wq.weight"),
            base.values("layers.1.attention.wq.weight"));
}

TEST(InitialState, Bf16IsTheRoundedMaster) {
  State base({});
  State half({.dtype = DType::kBF16});
  for (const std::string& name : base.parameters()) {
    const std::vector<float> master = half.values("master." + name);
    EXPECT_EQ(master, base.values(name)) << name;
    const auto rounded = half.values<BFloat16>(name);
    ASSERT_EQ(rounded.size(), master.size());
    for (std::size_t i = 0; i < master.size(); ++i) {
      // Half a step of 8 bits of mantissa.
      ASSERT_NEAR(to_float(rounded[i]), master[i], std::abs(master[i]) / 256.0F) << name;
    }
  }
}

TEST(InitialState, MomentsAreZero) {
  State state({.microbatch = 4});
  for (const std::string& name : state.parameters()) {
    EXPECT_THAT(state.values("moment1." + name), Each(0.0F));
    EXPECT_THAT(state.values("moment2." + name), Each(0.0F));
  }
}

// Gradients that several microbatches add up in are state of a step, not of the run.
TEST(StateTensors, AreParametersAndOptimizerState) {
  State f32({.layers = 1});
  State bf16({.layers = 1, .dtype = DType::kBF16});
  const auto roles = [](State& state) {
    std::vector<std::pair<TensorRole, DType>> result;
    for (const CheckpointTensor& tensor : state.tensors()) {
      if (tensor.name == "layers.0.attention.wk.weight") {
        EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{2, 16, 64}));
        result.emplace_back(tensor.role, tensor.dtype);
      }
    }
    return result;
  };
  EXPECT_THAT(roles(f32),
              UnorderedElementsAre(std::pair(TensorRole::kParameter, DType::kF32),
                                   std::pair(TensorRole::kMoment1, DType::kF32),
                                   std::pair(TensorRole::kMoment2, DType::kF32)));
  EXPECT_THAT(roles(bf16),
              UnorderedElementsAre(std::pair(TensorRole::kParameter, DType::kBF16),
                                   std::pair(TensorRole::kMoment1, DType::kF32),
                                   std::pair(TensorRole::kMoment2, DType::kF32),
                                   std::pair(TensorRole::kMaster, DType::kF32)));
  EXPECT_EQ(f32.tensors().size(), 3 * f32.parameters().size());
}

// A buffer is of the model's own dtype, and of no optimizer.
TEST(Buffers, AreSavedAsTheyAreAndCountedApart) {
  State f32({.layers = 1, .experts = true});
  State bf16({.layers = 1, .dtype = DType::kBF16, .experts = true});
  for (State* state : {&f32, &bf16}) {
    std::vector<std::pair<TensorRole, DType>> found;
    for (const CheckpointTensor& tensor : state->tensors()) {
      if (tensor.name == "mean") {
        found.emplace_back(tensor.role, tensor.dtype);
      }
    }
    EXPECT_THAT(found, UnorderedElementsAre(std::pair(TensorRole::kBuffer, DType::kF32)));
    const std::vector<CheckpointTensor> expected = model_tensors(state->inits(), DType::kF32);
    EXPECT_EQ(state->tensors().size(), expected.size());
    EXPECT_EQ(state->values("mean"), f32.values("mean"));
  }
  expect_normal(f32.values("mean"), 0.5);
  const ParameterCounts counts = count_parameters(f32.inits());
  const ParameterCounts without = count_parameters(State({.layers = 1}).inits());
  EXPECT_EQ(counts.all, without.all + std::int64_t{8} * 64);
  EXPECT_EQ(counts.frozen, 0);
  EXPECT_EQ(counts.buffers, 64 + 8);
}

// Zeros, and what they were asked for.
class Zeros final : public WeightSource {
 public:
  void load(std::span<const WeightRead> reads) const override {
    for (const WeightRead& read : reads) {
      asked.emplace_back(read.parameter, read.dtype);
      std::ranges::fill(read.out, std::byte{0});
    }
  }

  void read(const WeightRead& read) const override { load({&read, 1}); }

  mutable std::vector<std::pair<std::string, DType>> asked;
};

TEST(Buffers, StartFromWeights) {
  State state({.layers = 1, .dtype = DType::kBF16, .experts = true});
  const Zeros weights;
  load_weights(state.executor(), state.inits(), weights);
  EXPECT_THAT(weights.asked, Contains(std::pair(std::string("mean"), DType::kF32)));
  EXPECT_THAT(state.values("mean"), Each(0.0F));
}

// A model that generates in bf16 rounds its parameters, and no buffer.
TEST(Buffers, AreNotRounded) {
  const TestDirectory root;
  State trained({.layers = 1, .seed = 7, .experts = true});
  save_checkpoint(root.path() / "checkpoint", {.model = "{}"}, trained.tensors());
  State half({.layers = 1, .dtype = DType::kBF16, .experts = true});
  ASSERT_NE(half.values("mean"), trained.values("mean"));
  load_rounded(half.executor(), CheckpointReader(root.path() / "checkpoint"));
  EXPECT_EQ(half.values("mean"), trained.values("mean"));
  EXPECT_EQ(to_float(half.values<BFloat16>("experts")[5]),
            to_float(to_bfloat16(trained.values("experts")[5])));
}

}  // namespace
}  // namespace tessera
