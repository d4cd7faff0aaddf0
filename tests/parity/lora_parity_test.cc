// Low-rank adapters of a small Llama, GPT-2 and GPT-NeoX against PyTorch in float64: losses,
// gradient norms, the adapters' gradients and the adapters after some steps of AdamW, however the
// step is compiled. Frozen weights keep every bit; merged on export, they give the logits of base
// and adapters. The goldens come from tests/golden/make_lora_goldens.py.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/config/config.h"
#include "tessera/hugging_face/weights.h"
#include "tessera/ir/adapters.h"
#include "tessera/models/family.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/resolve/resolve.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"
#include "tessera/weights/export_weights.h"
#include "tessera/weights/import_weights.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kGoldens = fs::path(TESSERA_SOURCE_DIR) / "tests/golden";

std::vector<float> floats(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// |a - b| / |b|
double distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

struct Variant {
  std::string name;
  std::int64_t microbatches = 1;
  bool recompute = false;
  bool fuse = true;
  bool group_gemms = true;
};

// A model with the base weights of its golden directory and the adapters of lora/.
class LoraModel {
 public:
  explicit LoraModel(const std::string& family)
      : family_(family),
        golden_(json::parse(read_file(kGoldens / "lora/golden.json"))),
        adapters_(kGoldens / "lora" / (family + ".safetensors")),
        data_(kGoldens / family / (family == "llama" ? "data.safetensors" : "golden.safetensors")),
        backend_(make_cpu_backend(2)) {
    RunConfig config;
    if (family == "llama") {
      const json sizes = json::parse(read_file(kGoldens / "llama/golden.json")).at("config");
      config.model.dim = sizes.at("dim");
      config.model.layers = sizes.at("layers");
      config.model.heads = sizes.at("heads");
      config.model.kv_heads = sizes.at("kv_heads");
      config.model.ffn = sizes.at("ffn");
      config.model.vocab = sizes.at("vocab");
    } else {
      config.model = read_hugging_face_model(kGoldens / family).section;
    }
    config.model.weights = (kGoldens / family).string();
    config.data.files = {"none"};
    config.data.sequence_length = 24;
    config.run.dir = "none";
    config.tokenizer.path = "none";
    config.lora.rank = golden().at("rank");
    config.lora.alpha = golden().at("alpha").get<double>();
    config.lora.targets = golden().at("targets").get<std::vector<std::string>>();
    config_ = resolve(config);
    description_ = resolve_model(config_);
  }

  const json& golden() const { return golden_.at(family_); }

  std::int64_t num_steps() const { return golden_.at("steps"); }

  const RunConfig& config() const { return config_; }

  const ModelDescription& description() const { return description_; }

  const SafetensorsFile& adapters() const { return adapters_; }

  const std::vector<ParameterInit>& parameters() const { return parameters_; }

  void start_training(const Variant& variant) {
    variant_ = variant;
    const json& optimizer = golden_.at("optimizer");
    const Graph graph =
        training_graph(description_, batch() / variant.microbatches, seq(), DType::kF32);
    start(graph,
          compile_training(graph,
                           {.update = {.beta1 = optimizer.at("beta1"),
                                       .beta2 = optimizer.at("beta2"),
                                       .eps = optimizer.at("eps"),
                                       .weight_decay = optimizer.at("weight_decay"),
                                       .clip = optimizer.at("clip"),
                                       .num_microbatches = variant.microbatches},
                            .recompute = variant.recompute ? recompute_all() : RecomputeRules(),
                            .fuse = variant.fuse,
                            .group_gemms = variant.group_gemms,
                            .workspace_bytes = workspace()}));
  }

  // Loss and gradient norm.
  std::pair<double, double> step(std::size_t number) {
    const auto count = static_cast<std::size_t>(seq() * batch());
    for (const char* name : {"tokens", "positions", "documents", "labels"}) {
      const Binding& binding = find_binding(program_.inputs, name);
      const auto part = count / static_cast<std::size_t>(variant_.microbatches);
      for (std::int64_t m = 0; m < variant_.microbatches; ++m) {
        std::ranges::copy(
            ids(name).subspan(number * count + static_cast<std::size_t>(m) * part, part),
            reinterpret_cast<std::int32_t*>(executor_->bytes(binding, m).data()));
      }
    }
    const auto valid = std::ranges::count_if(ids("labels").subspan(number * count, count),
                                             [](std::int32_t label) { return label >= 0; });
    const StepOutputs outputs = TrainingStep(*executor_)
                                    .run({.num_labels = valid,
                                          .learning_rate = golden_.at("optimizer").at("lr"),
                                          .update_number = static_cast<std::int64_t>(number) + 1});
    return {double{outputs.loss_sum} / static_cast<double>(valid), double{outputs.grad_norm}};
  }

  std::vector<std::byte> state(const std::string& name) {
    const auto bytes = executor_->bytes(find_binding(program_.states, name));
    return {bytes.begin(), bytes.end()};
  }

  // Of the last position of the first sequence.
  std::vector<float> logits(const ModelDescription& model, const CheckpointReader& checkpoint) {
    const Graph graph = generation_graph(model, seq(), DType::kF32);
    program_ = compile_forward(graph, {.workspace_bytes = workspace()});
    executor_ = std::make_unique<Executor>(program_, *backend_);
    load_state(*executor_, parameter_inits(graph), checkpoint);
    for (const char* name : {"tokens", "positions", "documents"}) {
      const Binding& binding = find_binding(program_.inputs, name);
      std::ranges::copy(ids(name).first(static_cast<std::size_t>(seq())),
                        reinterpret_cast<std::int32_t*>(executor_->bytes(binding).data()));
    }
    const auto last = executor_->bytes(find_binding(program_.inputs, "last"));
    *reinterpret_cast<std::int32_t*>(last.data()) = static_cast<std::int32_t>(seq() - 1);
    executor_->run_step();
    return floats(executor_->bytes(find_binding(program_.outputs, "logits")));
  }

  // The state as a checkpoint.
  void save(const fs::path& path) {
    save_checkpoint(path,
                    {.step = 1, .model = description_.json, .config = to_toml(config_)},
                    state_tensors(*executor_, parameters_));
  }

 private:
  std::int64_t seq() const { return config_.data.sequence_length; }

  std::int64_t batch() const { return data_.find("tokens")->shape[1]; }

  std::span<const std::int32_t> ids(std::string_view name) const {
    const std::span<const std::byte> bytes = data_.find(name)->data;
    return {reinterpret_cast<const std::int32_t*>(bytes.data()),
            bytes.size() / sizeof(std::int32_t)};
  }

  WorkspaceQuery workspace() { return workspace_of(*backend_); }

  void start(const Graph& graph, Program program) {
    program_ = std::move(program);
    executor_ = std::make_unique<Executor>(program_, *backend_);
    parameters_ = parameter_inits(graph);
    initialize_state(*executor_, parameters_, 1);
    if (family_ == "llama") {
      const SafetensorsFile weights(kGoldens / "llama/weights.safetensors");
      for (const SafetensorsTensor& tensor : weights.tensors()) {
        set(tensor.name, tensor.data);
      }
    } else {
      load_weights(*executor_, parameters_, HuggingFaceWeights(kGoldens / family_, config_.model));
    }
    for (const ParameterInit& parameter : parameters_) {
      if (!parameter.frozen) {
        set(parameter.name, adapters_.find(parameter.name)->data);
      }
    }
  }

  void set(const std::string& name, std::span<const std::byte> data) {
    std::ranges::copy(data, executor_->bytes(find_binding(program_.states, name)).begin());
  }

  std::string family_;
  json golden_;
  SafetensorsFile adapters_;
  SafetensorsFile data_;
  std::unique_ptr<Backend> backend_;
  RunConfig config_;
  ModelDescription description_;
  Variant variant_;
  std::vector<ParameterInit> parameters_;
  Program program_;
  std::unique_ptr<Executor> executor_;
};

class LoraParity : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Families,
                         LoraParity,
                         testing::Values("llama", "gpt2", "neox"),
                         [](const auto& family) { return family.param; });

TEST_P(LoraParity, LossesNormsGradientsAndAdaptersArePyTorchs) {
  const bool is_even = GetParam() == "llama";
  for (const Variant& variant : {Variant{.name = "plain"},
                                 Variant{.name = "microbatches", .microbatches = is_even ? 2 : 3},
                                 Variant{.name = "recompute", .recompute = true},
                                 Variant{.name = "bare", .fuse = false, .group_gemms = false}}) {
    SCOPED_TRACE(variant.name);
    LoraModel model(GetParam());
    model.start_training(variant);
    const double first_norm = model.golden().at("grad_norms").at(0);
    for (std::int64_t n = 0; n < model.num_steps(); ++n) {
      const auto at = static_cast<std::size_t>(n);
      const auto [loss, norm] = model.step(at);
      EXPECT_NEAR(loss / model.golden().at("losses").at(at).get<double>(), 1, n == 0 ? 1e-6 : 1e-5);
      EXPECT_NEAR(
          norm / model.golden().at("grad_norms").at(at).get<double>(), 1, n == 0 ? 1e-5 : 1e-4);
      for (const ParameterInit& parameter : model.parameters()) {
        if (n == 0 && !parameter.frozen) {
          // The first moment is a tenth of the clipped gradient.
          std::vector<float> gradient = floats(model.state("moment1." + parameter.name));
          for (float& element : gradient) {
            element *= static_cast<float>(10.0 * std::max(first_norm / 0.5, 1.0));
          }
          EXPECT_LT(
              distance(gradient, floats(model.adapters().find("gradient." + parameter.name)->data)),
              1e-4)
              << parameter.name;
        }
      }
    }
    for (const ParameterInit& parameter : model.parameters()) {
      if (!parameter.frozen) {
        EXPECT_LT(distance(floats(model.state(parameter.name)),
                           floats(model.adapters().find("end." + parameter.name)->data)),
                  1e-4)
            << parameter.name;
      }
    }
  }
}

TEST_P(LoraParity, OnlyAdaptersChange) {
  LoraModel model(GetParam());
  model.start_training({});
  std::map<std::string, std::vector<std::byte>> before;
  for (const ParameterInit& parameter : model.parameters()) {
    before[parameter.name] = model.state(parameter.name);
    EXPECT_EQ(parameter.frozen, !is_adapter(parameter.name)) << parameter.name;
  }
  for (std::size_t n = 0; n < 3; ++n) {
    model.step(n);
  }
  for (const ParameterInit& parameter : model.parameters()) {
    EXPECT_EQ(model.state(parameter.name) == before.at(parameter.name), parameter.frozen)
        << parameter.name;
  }
}

// Gradients that wait for the update, moments and, in bf16, masters.
TEST_P(LoraParity, OnlyAdaptersHaveStates) {
  const LoraModel model(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Graph graph = training_graph(model.description(), 2, 24, dtype);
    const Program program = compile_training(graph, {.update = {.num_microbatches = 2}});
    std::set<std::string> states;
    for (const Binding& state : program.states) {
      EXPECT_TRUE(states.insert(state.name).second);
    }
    std::set<std::string> expected = {"loss"};
    for (const ParameterInit& parameter : parameter_inits(graph)) {
      expected.insert(parameter.name);
      if (!parameter.frozen) {
        expected.insert({"moment1." + parameter.name,
                         "moment2." + parameter.name,
                         "gradient." + parameter.name});
        if (dtype == DType::kBF16) {
          expected.insert("master." + parameter.name);
        }
      }
    }
    EXPECT_EQ(states, expected);
  }
}

TEST_P(LoraParity, MergedWeightsGiveTheLogitsOfBaseAndAdapters) {
  const TestDirectory directory;
  const fs::path checkpoint = directory.path() / "checkpoint";
  LoraModel model(GetParam());
  model.start_training({});
  model.step(0);
  model.save(checkpoint);
  export_weights({.checkpoint = checkpoint, .output = directory.path() / "merged"});
  import_weights(
      {.source = directory.path() / "merged", .checkpoint = directory.path() / "imported"});

  const std::vector<float> adapted =
      model.logits(model.description(), CheckpointReader(checkpoint));
  const ModelDescription plain =
      model_family(model.config().model.name).describe(model.config().model);
  const std::vector<float> merged =
      model.logits(plain, CheckpointReader(directory.path() / "imported"));
  ASSERT_EQ(merged.size(), adapted.size());
  EXPECT_LT(distance(merged, adapted), 1e-5);
  // The base alone gives others.
  const std::vector<float> without = model.logits(plain, CheckpointReader(checkpoint));
  EXPECT_GT(distance(without, adapted), 1e-2);
}

}  // namespace
}  // namespace tessera
