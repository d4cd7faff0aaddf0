#include "tessera/resolve/recompute_rules.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <system_error>
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

std::string to_string(const RecomputeChoice& choice) {
  std::string text = format("{} of {}:", choice.limit, choice.all_bytes);
  for (const RecomputeRule& rule : choice.rules) {
    text += format("{} {}-{}", text.back() == ':' ? "" : ";", rule.first, rule.end - 1);
    for (const std::string& op : rule.keep) {
      text += " " + op;
    }
  }
  return text;
}

RecomputeChoice parse_recompute_choice(std::string_view text) {
  const auto require = [text](bool condition) {
    TESSERA_REQUIRE(condition,
                    ErrorCode::kInvalidConfig,
                    "found \"{}\", expected BYTES of BYTES: FIRST-LAST OP OP ...; FIRST-LAST ..., "
                    "layers in their order, as a run writes it into its config.toml; leave it out "
                    "to choose",
                    text);
  };
  std::string_view rest = text;
  const auto number = [&](char end) {
    std::int64_t value = -1;
    const auto [place, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    rest.remove_prefix(static_cast<std::size_t>(place - rest.data()));
    require(error == std::errc() && value >= 0 && (end == '\0' || rest.starts_with(end)));
    rest.remove_prefix(end == '\0' ? 0 : 1);
    return value;
  };
  RecomputeChoice choice = {.limit = number(' ')};
  constexpr std::string_view kOf = "of ";
  require(rest.starts_with(kOf));
  rest.remove_prefix(kOf.size());
  choice.all_bytes = number(':');
  std::int64_t next = 0;
  while (!rest.empty()) {
    require(rest.starts_with(' '));
    rest.remove_prefix(1);
    RecomputeRule& rule = choice.rules.emplace_back();
    rule.first = number('-');
    const std::int64_t last = number('\0');
    require(next <= rule.first && rule.first <= last && last < RecomputeRule().end);
    rule.end = last + 1;
    next = rule.end;
    while (rest.starts_with(' ')) {
      rest.remove_prefix(1);
      const std::string_view op = rest.substr(0, rest.find_first_of(" ;"));
      require(!op.empty());
      rule.keep.emplace_back(op);
      rest.remove_prefix(op.size());
    }
    require(rest.empty() || (rest.starts_with(';') && rest.size() > 1));
    rest.remove_prefix(rest.empty() ? 0 : 1);
  }
  return choice;
}

std::string to_string(const RecomputeRules& rules) {
  std::string text;
  for (const RecomputeRule& rule : rules) {
    std::string kept;
    for (const std::string& op : rule.keep) {
      kept += (kept.empty() ? "" : ", ") + op;
    }
    const bool is_one = rule.end - rule.first == 1;
    text += format("{}{} {}",
                   text.empty() ? "" : "; ",
                   is_one ? format("layer {} keeps", rule.first)
                          : format("layers {}-{} keep", rule.first, rule.end - 1),
                   !kept.empty() ? kept
                   : is_one      ? "its input alone"
                                 : "their inputs alone");
  }
  return text.empty() ? "all is kept" : text;
}

}  // namespace tessera
