// A small Llama (grouped queries, two documents a sequence, two microbatches, labels that do not
// count) against PyTorch: loss and every gradient at step 1, and 20 steps of AdamW with clipping,
// weight decay and schedule. The goldens come from tests/golden/make_llama_goldens.py.

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/half.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/models/llama/llama.h"
#include "tessera/optim/schedule.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

const std::filesystem::path kGoldens =
    std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/llama";

// What differs between the runs that must agree.
struct Variant {
  bool fuse = true;
  bool group_gemms = true;
  bool recompute = false;
  RecomputeKept kept = RecomputeKept::kInputs;
  int threads = 2;
  DType dtype = DType::kF32;
  std::optional<Float8Options> float8 = {};
};

struct StepResult {
  double loss = 0.0;
  double grad_norm = 0.0;
};

class GoldenRun {
 public:
  explicit GoldenRun(const Variant& variant)
      : golden_(nlohmann::json::parse(read_file(kGoldens / "golden.json"))),
        data_(kGoldens / "data.safetensors"),
        backend_(make_cpu_backend(variant.threads)),
        program_(compile(variant)),
        executor_(program_, *backend_) {
    const SafetensorsFile weights(kGoldens / "weights.safetensors");
    for (const auto& tensor : weights.tensors()) {
      if (variant.dtype == DType::kF32) {
        load(tensor.name, tensor.data);
        continue;
      }
      load("master." + tensor.name, tensor.data);
      const std::vector<BFloat16> rounded = to_bf16(tensor.data);
      load(tensor.name, std::as_bytes(std::span(rounded)));
    }
  }

  std::int64_t num_steps() const { return golden_.at("steps"); }

  const nlohmann::json& golden() const { return golden_; }

  StepResult step(std::int64_t number) {
    const std::int64_t valid = load_batch(number);
    const Schedule schedule{.warmup = golden_.at("warmup"),
                            .decay_ratio = golden_.at("decay_ratio")};
    const double lr = golden_.at("optimizer").at("lr");
    const StepOutputs outputs = TrainingStep(executor_).run(
        {.num_labels = valid,
         .learning_rate = learning_rate(schedule, lr, num_steps(), number),
         .update_number = number});
    EXPECT_TRUE(outputs.applied);
    return {.loss = double{outputs.loss_sum} / static_cast<double>(valid),
            .grad_norm = double{outputs.grad_norm}};
  }

  std::vector<std::byte> state_bytes(const std::string& name) {
    const auto bytes = executor_.bytes(find_binding(program_.states, name));
    return {bytes.begin(), bytes.end()};
  }

  std::vector<float> state(const std::string& name) {
    const std::vector<std::byte> bytes = state_bytes(name);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
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
  void load(const std::string& name, std::span<const std::byte> data) {
    const auto target = executor_.bytes(find_binding(program_.states, name));
    ASSERT_EQ(target.size(), data.size()) << name;
    std::memcpy(target.data(), data.data(), target.size());
  }

  static std::vector<BFloat16> to_bf16(std::span<const std::byte> data) {
    std::vector<BFloat16> rounded(data.size() / sizeof(float));
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      float value = 0.0F;
      std::memcpy(&value, data.data() + i * sizeof value, sizeof value);
      rounded[i] = to_bfloat16(value);
    }
    return rounded;
  }

  std::int64_t config(const char* key) const { return golden_.at("config").at(key); }

  Program compile(const Variant& variant) {
    const ModelDescription model = describe_llama({.dim = config("dim"),
                                                   .layers = config("layers"),
                                                   .heads = config("heads"),
                                                   .kv_heads = config("kv_heads"),
                                                   .ffn = config("ffn"),
                                                   .vocab = config("vocab")});
    const nlohmann::json& optimizer = golden_.at("optimizer");
    return compile_training(
        training_graph(model, config("microbatch"), config("seq"), variant.dtype),
        {.update = {.beta1 = optimizer.at("beta1"),
                    .beta2 = optimizer.at("beta2"),
                    .eps = optimizer.at("eps"),
                    .weight_decay = optimizer.at("weight_decay"),
                    .clip = optimizer.at("clip"),
                    .num_microbatches = config("batch") / config("microbatch")},
         .float8 = variant.float8,
         .recompute = variant.recompute ? recompute_all(variant.kept) : RecomputeRules(),
         .fuse = variant.fuse,
         .group_gemms = variant.group_gemms,
         .workspace_bytes = workspace_of(*backend_)});
  }

  // Copies the step's rows into the microbatches' inputs; returns how many labels count.
  std::int64_t load_batch(std::int64_t number) {
    std::int64_t valid = 0;
    for (const auto& tensor : data_.tensors()) {
      const Binding& binding = find_binding(program_.inputs, tensor.name);
      const std::int64_t count = program_.num_microbatches;
      const auto rows = static_cast<std::size_t>(binding.tensor.type.num_bytes());
      for (std::int64_t m = 0; m < count; ++m) {
        const std::size_t from = static_cast<std::size_t>((number - 1) * count + m) * rows;
        std::memcpy(executor_.bytes(binding, m).data(), tensor.data.data() + from, rows);
        const auto* labels = reinterpret_cast<const std::int32_t*>(tensor.data.data() + from);
        for (std::size_t i = 0; tensor.name == "labels" && i < rows / 4; ++i) {
          valid += labels[i] >= 0 ? 1 : 0;
        }
      }
    }
    return valid;
  }

  nlohmann::json golden_;
  SafetensorsFile data_;
  std::unique_ptr<Backend> backend_;
  Program program_;
  Executor executor_;
};

TEST(LlamaParity, LossAndGradientsOfStepOne) {
  GoldenRun run({});
  const StepResult first = run.step(1);
  const double expected = run.golden().at("losses").at(0);
  EXPECT_NEAR(first.loss, expected, 1e-5 * expected);
  const SafetensorsFile gradients(kGoldens / "gradients.safetensors");
  EXPECT_EQ(gradients.tensors().size(), run.parameters().size());
  for (const auto& tensor : gradients.tensors()) {
    const std::vector<float> own = run.state("gradient." + tensor.name);
    const auto* reference = reinterpret_cast<const float*>(tensor.data.data());
    ASSERT_EQ(own.size() * sizeof(float), tensor.data.size());
    double difference = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      difference += std::pow(double{own[i]} - double{reference[i]}, 2);
      norm += std::pow(double{reference[i]}, 2);
    }
    EXPECT_LT(std::sqrt(difference), 1e-4 * std::sqrt(norm)) << tensor.name;
  }
}

TEST(LlamaParity, TwentyStepsOfAdamW) {
  GoldenRun run({});
  for (std::int64_t n = 1; n <= run.num_steps(); ++n) {
    const StepResult step = run.step(n);
    const auto at = static_cast<std::size_t>(n - 1);
    const double loss = run.golden().at("losses").at(at);
    const double grad_norm = run.golden().at("grad_norms").at(at);
    EXPECT_NEAR(step.loss, loss, 1e-4 * loss) << "step " << n;
    EXPECT_NEAR(step.grad_norm, grad_norm, 1e-3 * grad_norm) << "step " << n;
  }
}

// Losses of five steps and all weights after them, in bf16 with their f32 masters.
struct Outcome {
  std::vector<double> losses;
  std::vector<std::vector<std::byte>> weights;

  bool operator==(const Outcome&) const = default;
};

Outcome outcome(const Variant& variant) {
  GoldenRun run(variant);
  Outcome result;
  for (std::int64_t n = 1; n <= 5; ++n) {
    result.losses.push_back(run.step(n).loss);
  }
  for (const std::string& name : run.parameters()) {
    result.weights.push_back(run.state_bytes(name));
    if (variant.dtype == DType::kBF16) {
      result.weights.push_back(run.state_bytes("master." + name));
    }
  }
  return result;
}

double relative_distance(std::span<const float> own, std::span<const std::byte> golden) {
  std::vector<float> expected(golden.size() / sizeof(float));
  std::memcpy(expected.data(), golden.data(), golden.size());
  EXPECT_EQ(own.size(), expected.size());
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{own[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

struct Recipe {
  const char* name;
  Float8Options options;
};

void PrintTo(const Recipe& recipe, std::ostream* out) {
  *out << recipe.name;
}

const Recipe kRecipes[] = {
    {"tensorwise", {}},
    {"rowwise", {.rowwise = true, .gradients = DType::kF8E4M3}},
    {"tensorwise_head", {.head = true}},
    {"rowwise_head", {.rowwise = true, .gradients = DType::kF8E4M3, .head = true}}};

class LlamaFloat8 : public ::testing::TestWithParam<Recipe> {
 protected:
  static Variant variant() { return {.float8 = GetParam().options}; }
};

// Against PyTorch with products in 8 bits of its own (make_float8_goldens.py). Sums in another
// order may round a value to the next code, which moves a gradient by a part in a thousand; those
// of full precision are further away by ten times that.
TEST_P(LlamaFloat8, LossesAndGradientsOfPyTorch) {
  const std::filesystem::path folder = kGoldens.parent_path() / "float8";
  const auto golden = nlohmann::json::parse(read_file(folder / "golden.json"));
  const SafetensorsFile gradients(folder / format("{}.safetensors", GetParam().name));
  const SafetensorsFile exact(kGoldens / "gradients.safetensors");
  GoldenRun run(variant());
  const auto& losses = golden.at("losses").at(GetParam().name);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double expected = losses[i];
    EXPECT_NEAR(run.step(static_cast<std::int64_t>(i) + 1).loss,
                expected,
                (i == 0 ? 2e-5 : 1e-3) * expected)
        << "step " << i + 1;
    for (const auto& tensor : gradients.tensors()) {
      if (i > 0) {
        break;
      }
      const std::vector<float> own = run.state("gradient." + tensor.name);
      EXPECT_LT(relative_distance(own, tensor.data), 3e-3) << tensor.name;
      EXPECT_GT(relative_distance(own, exact.find(tensor.name)->data), 1e-2) << tensor.name;
    }
  }
}

TEST_P(LlamaFloat8, RunsRepeatWithRecomputeAndFusionOnOrOff) {
  const Outcome first = outcome(variant());
  EXPECT_EQ(first, outcome(variant()));
  Variant other = variant();
  other.recompute = true;
  EXPECT_EQ(first, outcome(other));
  other.fuse = false;
  EXPECT_EQ(first, outcome(other));
  other.recompute = false;
  EXPECT_EQ(first, outcome(other));
}

INSTANTIATE_TEST_SUITE_P(Recipes,
                         LlamaFloat8,
                         ::testing::ValuesIn(kRecipes),
                         [](const auto& recipe) { return std::string(recipe.param.name); });

class LlamaBitwise : public ::testing::TestWithParam<DType> {};

TEST_P(LlamaBitwise, SameRunTwice) {
  const Outcome first = outcome({.dtype = GetParam()});
  EXPECT_NE(first.losses.back(), first.losses.front());
  EXPECT_EQ(first, outcome({.dtype = GetParam()}));
}

TEST_P(LlamaBitwise, Recompute) {
  const Outcome expected = outcome({.dtype = GetParam()});
  for (const RecomputeKept kept : kRecomputeKept) {
    EXPECT_EQ(expected, outcome({.recompute = true, .kept = kept, .dtype = GetParam()}))
        << name(kept);
  }
}

TEST_P(LlamaBitwise, Fusion) {
  EXPECT_EQ(outcome({.dtype = GetParam()}), outcome({.fuse = false, .dtype = GetParam()}));
  EXPECT_EQ(outcome({.recompute = true, .dtype = GetParam()}),
            outcome({.fuse = false, .recompute = true, .dtype = GetParam()}));
  EXPECT_EQ(outcome({.group_gemms = false, .dtype = GetParam()}),
            outcome({.fuse = false, .group_gemms = false, .dtype = GetParam()}));
}

INSTANTIATE_TEST_SUITE_P(Types,
                         LlamaBitwise,
                         ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& type) { return std::string(name(type.param)); });

TEST(LlamaGroupedGemms, AgreeWithinTheLibrarysRounding) {
  const Outcome grouped = outcome({});
  const Outcome apart = outcome({.group_gemms = false});
  for (std::size_t i = 0; i < grouped.losses.size(); ++i) {
    EXPECT_NEAR(grouped.losses[i], apart.losses[i], 1e-5 * apart.losses[i]);
  }
}

}  // namespace
}  // namespace tessera
