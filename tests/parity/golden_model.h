#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/autodiff/differentiate.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/hugging_face/weights.h"
#include "tessera/models/family.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/program/step_names.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"

namespace tessera {

inline std::filesystem::path golden_directory(const std::string& family) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden" / family;
}

// The families of tests/golden/make_decoder_goldens.py whose models are here.
inline std::vector<std::string> decoder_goldens() {
  return {"llama_bias",
          "llama_linear",
          "llama_dynamic",
          "llama_yarn",
          "qwen2",
          "qwen3",
          "mistral",
          "phi3",
          "phi3_longrope",
          "olmo2",
          "gemma2",
          "gemma3",
          "pythia",
          "redpajama"};
}

// `families`, and those.
inline std::vector<std::string> with_decoder_goldens(std::vector<std::string> families) {
  const std::vector<std::string> decoders = decoder_goldens();
  families.insert(families.end(), decoders.begin(), decoders.end());
  return families;
}

// How a step is compiled.
struct StepForm {
  bool recompute = false;
  bool fuse = true;
  DType dtype = DType::kF32;
};

// A compiled model with the weights of its golden directory.
class GoldenModel {
 public:
  // `name` is that of the files with what PyTorch computed.
  GoldenModel(const std::string& family, std::int64_t padding, const std::string& name = "golden")
      : directory_(golden_directory(family)),
        golden_(nlohmann::json::parse(read_file(directory_ / (name + ".json")))),
        data_(directory_ / (name + ".safetensors")),
        section_(read_hugging_face_model(directory_).section),
        backend_(make_cpu_backend(2)) {
    change([&](ModelSection& section) {
      if (padding > 0) {
        section.padded_vocab = section.vocab.value_or(0) + padding;
      }
    });
  }

  // Makes another model of it, of the same weights.
  void change(const std::function<void(ModelSection&)>& edit) {
    edit(section_);
    description_ = model_family(section_.name).describe(section_);
  }

  // The same with a graph that another function writes, of the same parameters.
  void change_page(const Model& page) { description_.model = page; }

  const nlohmann::json& golden() const { return golden_; }

  std::int64_t seq() const { return golden_.at("seq"); }

  std::int64_t microbatches() const { return golden_.value("microbatches", std::int64_t{1}); }

  std::span<const std::int32_t> ids(std::string_view name) const {
    const std::span<const std::byte> bytes = data_.find(name)->data;
    return {reinterpret_cast<const std::int32_t*>(bytes.data()),
            bytes.size() / sizeof(std::int32_t)};
  }

  // Of every position of the first sequence; `edit` changes ops of the graph.
  std::vector<float> logits(const std::function<void(Graph&)>& edit = [](Graph&) {}) {
    Graph forward = generation_graph(description_, seq(), DType::kF32);
    edit(forward);
    start(std::move(forward), [&](const Graph& graph) {
      return compile_forward(graph, {.workspace_bytes = workspace_of(*backend_)});
    });
    std::vector<float> all;
    for (std::int64_t i = 0; i < seq(); ++i) {
      for (const char* name : {"tokens", "positions", "documents"}) {
        std::ranges::copy(ids(name).first(static_cast<std::size_t>(seq())), input(name));
      }
      input("last")[0] = static_cast<std::int32_t>(i);
      executor_->run_step();
      const auto bytes = executor_->bytes(find_binding(program_.outputs, "logits"));
      const auto* first = reinterpret_cast<const float*>(bytes.data());
      all.insert(all.end(), first, first + bytes.size() / sizeof(float));
    }
    return all;
  }

  void start_training(const StepForm& form = {}) {
    const nlohmann::json& optimizer = golden_.at("optimizer");
    start(training_graph(description_, golden_.at("batch"), seq(), form.dtype),
          [&](const Graph& graph) {
            return compile_training(
                graph,
                {.update = {.beta1 = optimizer.at("beta1"),
                            .beta2 = optimizer.at("beta2"),
                            .eps = optimizer.at("eps"),
                            .weight_decay = optimizer.at("weight_decay"),
                            .clip = optimizer.at("clip"),
                            .num_microbatches = microbatches()},
                 .recompute = form.recompute ? recompute_all() : RecomputeRules(),
                 .fuse = form.fuse,
                 .workspace_bytes = workspace_of(*backend_)});
          });
  }

  // Of all steps, losses and gradient norms.
  std::vector<std::pair<double, double>> train(const StepForm& form) {
    start_training(form);
    std::vector<std::pair<double, double>> steps;
    for (std::size_t n = 0; n < golden_.at("steps").get<std::size_t>(); ++n) {
      steps.push_back(step(n));
    }
    return steps;
  }

  // Loss and gradient norm.
  std::pair<double, double> step(std::size_t number) {
    const std::int64_t valid = set_batch(number);
    const StepOutputs outputs = TrainingStep(*executor_)
                                    .run({.num_labels = valid,
                                          .learning_rate = golden_.at("optimizer").at("lr"),
                                          .update_number = static_cast<std::int64_t>(number) + 1});
    return {double{outputs.loss_sum} / static_cast<double>(valid), double{outputs.grad_norm}};
  }

  std::vector<float> golden_logits() const { return golden_floats("logits"); }

  std::vector<float> golden_floats(std::string_view name) const {
    const SafetensorsTensor* const tensor = data_.find(name);
    TESSERA_CHECK(tensor != nullptr, "no golden tensor {}", name);
    std::vector<float> values(tensor->data.size() / sizeof(float));
    std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
    return values;
  }

  const ModelSection& section() const { return section_; }

  const ModelDescription& description() const { return description_; }

  // The golden weights.
  void load(Executor& executor, const std::vector<ParameterInit>& parameters) const {
    load_weights(executor, parameters, HuggingFaceWeights(directory_, section_));
  }

  // A step whose results are the gradients of the mean loss, by the names of outputs.
  void start_gradients() {
    start(training_graph(description_, golden_.at("batch"), seq(), DType::kF32),
          [&](const Graph& forward) {
            Graph graph = differentiate(forward);
            for (Output& output : graph.outputs) {
              output = {.name = output.name, .value = output.value};
            }
            return compile_forward(std::move(graph), {.workspace_bytes = workspace_of(*backend_)});
          });
  }

  // Runs the program on a step's batch, its loss divided by the labels that count.
  void run_batch(std::size_t number) {
    const std::int64_t valid = set_batch(number);
    const float inverse = 1.0F / static_cast<float>(valid);
    executor_->set_scalar(step_names::kInverseLabels, inverse);
    executor_->run_step();
  }

  std::span<const float> output(std::string_view name) {
    return floats(find_binding(program_.outputs, name));
  }

  std::span<const float> state(std::string_view name) {
    return floats(find_binding(program_.states, name));
  }

 private:
  // Writes the microbatches of a step. Returns how many labels count.
  std::int64_t set_batch(std::size_t number) {
    const std::size_t count =
        static_cast<std::size_t>(seq()) * golden_.at("batch").get<std::size_t>();
    const auto of_step = static_cast<std::size_t>(microbatches());
    for (const char* name : {"tokens", "positions", "documents", "labels"}) {
      for (std::size_t m = 0; m < of_step; ++m) {
        std::ranges::copy(ids(name).subspan((number * of_step + m) * count, count),
                          input(name, static_cast<std::int64_t>(m)));
      }
    }
    return std::ranges::count_if(ids("labels").subspan(number * of_step * count, of_step * count),
                                 [](std::int32_t label) { return label >= 0; });
  }

  std::span<const float> floats(const Binding& binding) {
    const std::span<const std::byte> bytes = executor_->bytes(binding);
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

  void start(Graph graph, const std::function<Program(const Graph&)>& compile) {
    graph_ = std::move(graph);
    program_ = compile(graph_);
    executor_ = std::make_unique<Executor>(program_, *backend_);
    // Padding behind the vocabulary holds what no result may see.
    initialize_state(*executor_, parameter_inits(graph_), 1);
    load(*executor_, parameter_inits(graph_));
  }

  std::int32_t* input(const char* name, std::int64_t microbatch = 0) {
    return reinterpret_cast<std::int32_t*>(
        executor_->bytes(find_binding(program_.inputs, name), microbatch).data());
  }

  std::filesystem::path directory_;
  nlohmann::json golden_;
  SafetensorsFile data_;
  ModelSection section_;
  ModelDescription description_;
  std::unique_ptr<Backend> backend_;
  Graph graph_;
  Program program_;
  std::unique_ptr<Executor> executor_;
};

// Holds what `found` gives by parameter to the golden tensors `prefix` + name, whose rows may lie
// in another order, to a part of each tensor's largest element.
template <class Found>
void expect_near_goldens(const GoldenModel& model,
                         std::string_view prefix,
                         const Found& found,
                         double tolerance) {
  const ModelFamily& family = model_family(model.section().name);
  for (const HuggingFaceWeight& weight : family.hugging_face_weights(model.section())) {
    const std::vector<float> expected = model.golden_floats(std::string(prefix) + weight.name);
    double largest = 0.0;
    for (const float value : expected) {
      largest = std::max(largest, std::abs(double{value}));
    }
    ASSERT_GT(largest, 0.0) << weight.name;
    std::vector<std::span<const float>> parts;
    for (const HuggingFaceWeight::Part& part : weight.parts) {
      parts.push_back(found(part.parameter));
    }
    const std::int64_t columns = weight.columns();
    for (std::int64_t row = 0; row < weight.rows(); ++row) {
      const PartRow ours = our_row(weight, row);
      for (std::int64_t column = 0; column < columns; ++column) {
        const auto at = static_cast<std::size_t>(ours.row * columns + column);
        const auto theirs = static_cast<std::size_t>(
            weight.transposed ? column * weight.rows() + row : row * columns + column);
        ASSERT_NEAR(parts[ours.part][at], expected[theirs], tolerance * largest)
            << weight.name << " row " << row << " column " << column;
      }
    }
  }
}

}  // namespace tessera
