#include "tessera/resolve/changed_keys.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/config/fit_schedule.h"
#include "tessera/config/schema.h"
#include "tessera/optim/schedule.h"
#include "tessera/plan/run_layout.h"
#include "tessera/resolve/resolve_layout.h"

namespace tessera {
namespace {

// Whole sections by their name, single keys by their full one.
constexpr std::array<std::string_view, 25> kKeysOfBits = {"run.threads",
                                                          "run.device",
                                                          "run.deterministic",
                                                          "run.time_gemms",
                                                          "tokenizer.bos",
                                                          "tokenizer.eos",
                                                          "data",
                                                          "train.global_batch",
                                                          "train.microbatch",
                                                          "train.tf32",
                                                          "train.dropout",
                                                          "optimizer",
                                                          "schedule",
                                                          "passes.group_gemms",
                                                          "passes.gelu_products",
                                                          "passes.attention",
                                                          "parallel.data",
                                                          "parallel.tensor",
                                                          "parallel.sequence_parallel",
                                                          "parallel.context",
                                                          "context",
                                                          "pipeline.slices",
                                                          "state",
                                                          "cluster",
                                                          "comm.reduction"};

constexpr std::array<std::string_view, 19> kKeysOfSteps = {"model.name",
                                                           "model.flavor",
                                                           "lora",
                                                           "float8",
                                                           "parallel",
                                                           "context",
                                                           "pipeline",
                                                           "state",
                                                           "comm",
                                                           "memory",
                                                           "data.sequence_length",
                                                           "data.document_mask",
                                                           "train.global_batch",
                                                           "train.microbatch",
                                                           "train.dtype",
                                                           "train.logits",
                                                           "optimizer.moments",
                                                           "optimizer.gradients",
                                                           "passes"};

bool sends_values(const RunLayout& layout) {
  const StateWires& wires = layout.wires;
  return wires.param.formats.empty() && wires.secondary.formats.empty() &&
         wires.grad.formats.empty() && wires.update.formats.empty();
}

// How ranks share the layers, and in which order they work, changes no sum.
bool divide_sums_alike(const ParallelSection& before, const ParallelSection& now) {
  return before.data == now.data && before.tensor == now.tensor &&
         before.sequence_parallel == now.sequence_parallel && before.context == now.context;
}

bool has_one_microbatch(const RunConfig& config, const RunLayout& layout) {
  return config.train.global_batch == config.train.microbatch * layout.num_data();
}

// Whether the placements of state make no difference to what is summed in which order
// (docs/design/determinism.md, D3).
bool state_has_same_sums(const RunConfig& before, const RunConfig& now) {
  if (before.state == now.state || !divide_sums_alike(before.parallel, now.parallel) ||
      before.cluster != now.cluster) {
    return before.state == now.state;
  }
  const RunLayout first = resolve_layout(before).layout;
  const RunLayout second = resolve_layout(now).layout;
  return sends_values(first) && sends_values(second) &&
         (first.placement.grad == second.placement.grad ||
          (has_one_microbatch(before, first) && has_one_microbatch(now, second)));
}

double rate(const RunConfig& config, std::int64_t step) {
  return learning_rate(config.schedule, config.optimizer.lr, config.train.steps, step);
}

bool have_same_rates(const RunConfig& before, const RunConfig& now, std::int64_t step) {
  if (before.schedule == now.schedule && before.optimizer.lr == now.optimizer.lr &&
      before.train.steps == now.train.steps) {
    return true;
  }
  for (std::int64_t n = 1; n <= step; ++n) {
    if (rate(before, n) != rate(now, n)) {
      return false;
    }
  }
  return true;
}

// Whether both have the value that follows from train.steps where nobody names the key.
bool is_usual_warmup(const RunConfig& before, const RunConfig& now) {
  return std::ranges::all_of(std::array{&before, &now}, [](const RunConfig* config) {
    return config->schedule.warmup == usual_warmup(config->schedule, config->train.steps);
  });
}

bool is_usual_decay(const RunConfig& before, const RunConfig& now) {
  return std::ranges::all_of(std::array{&before, &now}, [](const RunConfig* config) {
    return config->schedule.decay_ratio == usual_decay_ratio(config->schedule, config->train.steps);
  });
}

std::string text_of(const ConfigKey& key, const RunConfig& config) {
  const std::optional<ConfigValue> value = key.get(config);
  return value ? to_toml(*value) : "left out";
}

// The keys that differ and matter, with both values.
template <class Matters>
std::vector<ChangedKey> changed(const RunConfig& before,
                                const RunConfig& now,
                                const Matters& matters) {
  std::vector<ChangedKey> keys;
  for (const ConfigSection& section : schema()) {
    for (const ConfigKey& key : section.keys) {
      std::string name = format("{}.{}", section.name, key.name);
      if (matters(section.name, name) && key.get(before) != key.get(now)) {
        keys.push_back(
            {.key = std::move(name), .before = text_of(key, before), .now = text_of(key, now)});
      }
    }
  }
  return keys;
}

std::vector<std::string> as_texts(const std::vector<ChangedKey>& keys) {
  std::vector<std::string> texts;
  for (const ChangedKey& key : keys) {
    texts.push_back(format("{} ({}, now {})", key.key, key.before, key.now));
  }
  return texts;
}

}  // namespace

std::vector<ChangedKey> differing_keys(const RunConfig& before, const RunConfig& now) {
  return changed(
      before, now, [](std::string_view /*section*/, std::string_view /*key*/) { return true; });
}

std::vector<std::string> all_changed_keys(const RunConfig& before, const RunConfig& now) {
  return as_texts(differing_keys(before, now));
}

std::vector<std::string> changed_keys(const RunConfig& before,
                                      const RunConfig& now,
                                      std::int64_t step) {
  const bool same_sums = state_has_same_sums(before, now);
  const bool same_rates = have_same_rates(before, now, step);
  return as_texts(changed(before, now, [&](std::string_view section, std::string_view key) {
    const bool has_no_part = (section == "state" && same_sums) ||
                             (key == "schedule.warmup" && is_usual_warmup(before, now)) ||
                             (key == "schedule.decay_ratio" && is_usual_decay(before, now));
    const bool counts =
        std::ranges::count(kKeysOfBits, section) + std::ranges::count(kKeysOfBits, key) > 0;
    return (counts && !has_no_part) || (key == "train.steps" && !same_rates);
  }));
}

std::vector<KeyValue> step_keys(const RunConfig& config) {
  std::vector<KeyValue> keys;
  for (const ConfigSection& section : schema()) {
    for (const ConfigKey& key : section.keys) {
      std::string name = format("{}.{}", section.name, key.name);
      if (std::ranges::count(kKeysOfSteps, section.name) +
              std::ranges::count(kKeysOfSteps, std::string_view(name)) >
          0) {
        keys.emplace_back(std::move(name), text_of(key, config));
      }
    }
  }
  return keys;
}

std::string learning_rate_jump(const RunConfig& before, const RunConfig& now, std::int64_t step) {
  if (step == 0 || step >= now.train.steps || rate(before, step) == rate(now, step)) {
    return "";
  }
  return format("the learning rate goes from {:.3g} at step {} to {:.3g} at step {}",
                rate(before, step),
                step,
                rate(now, step + 1),
                step + 1);
}

}  // namespace tessera
