#include "tessera/resolve/adapters.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/passes/graph/add_adapters.h"
#include "tessera/plan/graphs.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr const char* kLora = "lora";

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::ranges::find(names, name) == names.end()) {
    names.push_back(name);
  }
}

// The weights of a model by the names that a target may have.
class Targets {
 public:
  Targets(const std::vector<AdaptableWeight>& weights, std::span<const HuggingFaceWeight> theirs)
      : theirs_(theirs) {
    for (const AdaptableWeight& weight : weights) {
      add_once(ours_, target_name(weight.name));
    }
  }

  // In the order of the model.
  const std::vector<std::string>& all() const { return ours_; }

  // What `target` means: itself, or what a weight of that name is made of; empty: nothing.
  std::vector<std::string> find(const std::string& target) const {
    if (std::ranges::find(ours_, target) != ours_.end()) {
      return {target};
    }
    std::vector<std::string> found;
    for (const HuggingFaceWeight& weight : theirs_) {
      if (is_matrix(weight) && target_name(weight.name) == target) {
        for (const HuggingFaceWeight::Part& part : weight.parts) {
          add_once(found, target_name(part.parameter));
        }
      }
    }
    return found;
  }

  // Every name, for messages.
  std::string known() const {
    std::vector<std::string> names = ours_;
    for (const HuggingFaceWeight& weight : theirs_) {
      if (is_matrix(weight)) {
        add_once(names, target_name(weight.name));
      }
    }
    std::string text;
    for (const std::string& name : names) {
      text += (text.empty() ? "" : ", ") + name;
    }
    return text;
  }

 private:
  // Whether an adapter can be added to all that it is made of.
  bool is_matrix(const HuggingFaceWeight& weight) const {
    return weight.shape.size() == 2 &&
           std::ranges::all_of(weight.parts, [&](const HuggingFaceWeight::Part& part) {
             return std::ranges::find(ours_, target_name(part.parameter)) != ours_.end();
           });
  }

  std::span<const HuggingFaceWeight> theirs_;
  std::vector<std::string> ours_;
};

AdapterOptions resolved(const RunConfig& config,
                        const Targets& targets,
                        const std::vector<AdaptableWeight>& weights) {
  AdapterOptions options = {
      .rank = config.lora.rank,
      .alpha = config.lora.alpha.value_or(static_cast<double>(config.lora.rank))};
  std::vector<std::string> wanted = targets.all();
  if (!config.lora.targets.empty()) {
    wanted.clear();
    for (const std::string& target : config.lora.targets) {
      const std::vector<std::string> found = targets.find(target);
      TESSERA_REQUIRE(!found.empty(),
                      ErrorCode::kInvalidConfig,
                      "{}: found \"{}\", expected one of {}",
                      placed(config, "lora.targets"),
                      target,
                      targets.known());
      wanted.insert(wanted.end(), found.begin(), found.end());
    }
  }
  for (const std::string& name : targets.all()) {
    if (std::ranges::find(wanted, name) != wanted.end()) {
      options.targets.push_back(name);
    }
  }
  for (const AdaptableWeight& weight : weights) {
    const std::int64_t most = std::min(weight.inputs, weight.outputs);
    const bool is_target =
        std::ranges::find(options.targets, target_name(weight.name)) != options.targets.end();
    TESSERA_REQUIRE(!is_target || options.rank <= most,
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, expected at most {}: {} is a matrix of {} x {}",
                    placed(config, "lora.rank"),
                    options.rank,
                    most,
                    weight.name,
                    weight.outputs,
                    weight.inputs);
  }
  return options;
}

// "no [lora]", "lora.rank = 8, lora.alpha = 16.0, lora.targets = ["wq"]".
std::string text_of(const Json& model) {
  if (!model.contains(kLora)) {
    return "no [lora]";
  }
  std::string text;
  for (const char* key : {"rank", "alpha", "targets"}) {
    text += format("{}lora.{} = {}", text.empty() ? "" : ", ", key, model.at(kLora).at(key).dump());
  }
  return text;
}

}  // namespace

ModelDescription with_adapters(ModelDescription model,
                               const RunConfig& config,
                               std::span<const HuggingFaceWeight> theirs) {
  if (config.lora.rank == 0) {
    return model;
  }
  const std::vector<AdaptableWeight> weights =
      adaptable_weights(training_graph(model, 1, 1, DType::kF32));
  AdapterOptions options = resolved(config, Targets(weights, theirs), weights);
  Json json = Json::parse(model.json);
  json[kLora] = {{"rank", options.rank}, {"alpha", options.alpha}, {"targets", options.targets}};
  model.json = json.dump();
  model.adapters = std::move(options);
  return model;
}

void require_same_adapters(const std::filesystem::path& checkpoint,
                           const CheckpointMeta& meta,
                           const ModelDescription& model) {
  const Json found = Json::parse(meta.model);
  const Json expected = Json::parse(model.json);
  const bool is_base = !found.contains(kLora) && expected.contains(kLora);
  TESSERA_REQUIRE(found.value(kLora, Json()) == expected.value(kLora, Json()),
                  ErrorCode::kInvalidConfig,
                  "checkpoint {} was made with {}, found {}{}",
                  checkpoint.string(),
                  text_of(found),
                  text_of(expected),
                  is_base ? ": to adapt its weights, name it in model.weights of a new run" : "");
}

}  // namespace tessera
