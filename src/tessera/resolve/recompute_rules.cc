#include "tessera/resolve/recompute_rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

RecomputeKept kept(Recompute recompute) {
  switch (recompute) {
    case Recompute::kAuto:
    case Recompute::kNone:
    case Recompute::kFull:
    case Recompute::kFullButLastStage:
      break;
    case Recompute::kSelective:
      return RecomputeKept::kAllButCheap;
    case Recompute::kAttention:
      return RecomputeKept::kAllButAttention;
    case Recompute::kEverySecondProduct:
      return RecomputeKept::kEverySecondProduct;
  }
  return RecomputeKept::kInputs;
}

// By stage, how many layers.
std::vector<std::int64_t> stages_of(const Plan& plan) {
  return plan.pipeline ? plan.pipeline->layers : std::vector<std::int64_t>{plan.model.num_layers};
}

void require_layers_exist(const RunConfig& config, const Plan& plan) {
  const RecomputedLayers& layers = config.memory.recompute_layers;
  const std::int64_t of_stage = std::ranges::max(stages_of(plan));
  TESSERA_REQUIRE(layers.end <= plan.model.num_layers && layers.of_stage <= of_stage,
                  ErrorCode::kInvalidConfig,
                  "{}: found \"{}\", expected {}",
                  placed(config, "memory.recompute_layers"),
                  to_string(layers),
                  layers.of_stage > 0
                      ? format("at most {}, the layers of a stage", of_stage)
                      : format("layers of the model, whose last is {}", plan.model.num_layers - 1));
}

std::string list_text(const std::vector<std::string>& ops) {
  std::string text;
  for (const std::string& op : ops) {
    text += (text.empty() ? "" : ", ") + op;
  }
  return text;
}

std::string kept_text(const RecomputeRule& rule, bool is_one) {
  if (rule.kept != RecomputeKept::kInputs) {
    return std::string(name(rule.kept));
  }
  if (!rule.keep.empty()) {
    return list_text(rule.keep);
  }
  return is_one ? "its input alone" : "their inputs alone";
}

std::string rule_text(const RecomputeRule& rule) {
  const bool is_one = rule.end - rule.first == 1;
  std::string text = is_one ? format("layer {} keeps ", rule.first)
                            : format("layers {}-{} keep ", rule.first, rule.end - 1);
  text += kept_text(rule, is_one);
  if (!rule.store.empty()) {
    text += format(" and {} {}", is_one ? "stores" : "store", list_text(rule.store));
  }
  return text;
}

}  // namespace

RecomputeRules recompute_rules(const RunConfig& config, const Plan& plan) {
  const MemorySection& memory = config.memory;
  const std::int64_t num_layers = plan.model.num_layers;
  if (memory.recompute == Recompute::kNone || memory.recompute == Recompute::kAuto) {
    return {};
  }
  const std::vector<std::int64_t> stages = stages_of(plan);
  RecomputeRule rule = {
      .kept = kept(memory.recompute), .keep = memory.keep, .again = memory.recompute_ops};
  if (memory.recompute == Recompute::kFullButLastStage) {
    rule.end = num_layers - stages.back();
    return rule.end > 0 ? RecomputeRules{rule} : RecomputeRules();
  }
  const RecomputedLayers& layers = memory.recompute_layers;
  if (layers.is_all()) {
    return {rule};
  }
  require_layers_exist(config, plan);
  if (layers.of_stage == 0) {
    rule.first = layers.first;
    rule.end = layers.end;
    return {rule};
  }
  RecomputeRules rules;
  std::int64_t first = 0;
  for (const std::int64_t count : stages) {
    rule.first = first;
    rule.end = first + std::min(count, layers.of_stage);
    first += count;
    if (count > 0) {
      rules.push_back(rule);
    }
  }
  return rules;
}

std::string to_string(const RecomputeRules& rules) {
  std::string text;
  for (const RecomputeRule& rule : rules) {
    text += (text.empty() ? "" : "; ") + rule_text(rule);
  }
  return text.empty() ? "all is kept" : text;
}

}  // namespace tessera
