#include "tessera/train/resume.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/config/fit_schedule.h"
#include "tessera/config/schema.h"
#include "tessera/models/family.h"
#include "tessera/optim/schedule.h"
#include "tessera/plan/run_layout.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/train/resolve_layout.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Whole sections by their name, single keys by their full one.
constexpr std::array<std::string_view, 18> kKeysOfBits = {"run.threads",
                                                          "run.device",
                                                          "run.deterministic",
                                                          "run.time_gemms",
                                                          "tokenizer.bos",
                                                          "tokenizer.eos",
                                                          "data",
                                                          "train.global_batch",
                                                          "train.microbatch",
                                                          "train.tf32",
                                                          "optimizer",
                                                          "schedule",
                                                          "passes.group_gemms",
                                                          "passes.gelu_products",
                                                          "parallel",
                                                          "state",
                                                          "cluster",
                                                          "comm.reduction"};

bool sends_values(const RunLayout& layout) {
  const StateWires& wires = layout.wires;
  return wires.param.formats.empty() && wires.secondary.formats.empty() &&
         wires.grad.formats.empty() && wires.update.formats.empty();
}

bool has_one_microbatch(const RunConfig& config, const RunLayout& layout) {
  return config.train.global_batch == config.train.microbatch * layout.num_data();
}

// Whether the placements of state make no difference to what is summed in which order
// (docs/design/determinism.md, D3).
bool state_has_same_sums(const RunConfig& before, const RunConfig& now) {
  if (before.state == now.state || before.parallel != now.parallel ||
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

// What `tessera checkpoint import` takes, by the names of its files.
bool has_hugging_face_weights(const fs::path& directory) {
  std::error_code error;
  if (!fs::exists(directory / "config.json", error)) {
    return false;
  }
  fs::directory_iterator entries(directory, error);
  return !error && std::any_of(fs::begin(entries), fs::end(entries), [](const auto& entry) {
    return entry.path().extension() == ".safetensors";
  });
}

std::string text_of(const ConfigKey& key, const RunConfig& config) {
  const std::optional<ConfigValue> value = key.get(config);
  return value ? to_toml(*value) : "left out";
}

// The keys that differ and matter, with both values.
template <class Matters>
std::vector<std::string> changed(const RunConfig& before,
                                 const RunConfig& now,
                                 const Matters& matters) {
  std::vector<std::string> keys;
  for (const ConfigSection& section : schema()) {
    for (const ConfigKey& key : section.keys) {
      const std::string name = format("{}.{}", section.name, key.name);
      if (matters(section.name, name) && key.get(before) != key.get(now)) {
        keys.push_back(format("{} ({}, now {})", name, text_of(key, before), text_of(key, now)));
      }
    }
  }
  return keys;
}

}  // namespace

fs::path require_checkpoint(const fs::path& path) {
  auto found = find_checkpoint(path);
  TESSERA_REQUIRE(found || fs::exists(path),
                  ErrorCode::kInvalidConfig,
                  "{} does not exist, expected a run directory or a checkpoint",
                  path.string());
  TESSERA_REQUIRE(found || !has_hugging_face_weights(path),
                  ErrorCode::kInvalidConfig,
                  "{0} holds Hugging Face weights, no checkpoint: make one of them first, with "
                  "`tessera checkpoint import {0} -o CHECKPOINT`",
                  path.string());
  TESSERA_REQUIRE(found.has_value(),
                  ErrorCode::kInvalidConfig,
                  "{} has no checkpoint: train first, or name one",
                  path.string());
  return *std::move(found);
}

void require_known_model(const fs::path& checkpoint, const CheckpointMeta& meta) {
  const nlohmann::json model = parse_json(meta.model, {.name = "the checkpoint's model"});
  const std::string found =
      model.is_object() && model.contains("family") ? model["family"].dump() : "none";
  std::string known;
  for (const ModelFamily& family : model_families()) {
    if (found == format("\"{}\"", family.described)) {
      return;
    }
    known += format("{}\"{}\"", known.empty() ? "" : ", ", family.name);
  }
  fail(ErrorCode::kInvalidConfig,
       "{} is of a model of its own, family {}: only the program that built it can compute it; "
       "this one knows the families {}",
       checkpoint.string(),
       found,
       known);
}

std::string tokenizer_checksum(const fs::path& tokenizer) {
  const std::string bytes = read_tokenizer_file(tokenizer);
  return digest(std::as_bytes(std::span(bytes))).xxh3_128;
}

fs::path tokenizer_copy(const fs::path& run_dir) {
  return run_dir / "tokenizer.json";
}

fs::path checkpoint_tokenizer(const fs::path& checkpoint, const fs::path& configured) {
  std::error_code error;
  // Absolute and without "." and links, so that "above" means the run directory.
  const fs::path place = fs::canonical(checkpoint, error);
  if (error) {
    return configured;
  }
  const fs::path own = tokenizer_copy(place);
  fs::path run = tokenizer_copy(place.parent_path().parent_path());
  const bool has_own = fs::is_regular_file(own, error);
  const bool has_run = fs::is_regular_file(run, error);
  // The run's outlives the checkpoint, and has the run's other files beside it.
  if (has_run && (!has_own || read_tokenizer_file(run) == read_tokenizer_file(own))) {
    return run;
  }
  return has_own ? own : configured;
}

void require_tokenizer(const fs::path& tokenizer,
                       const fs::path& checkpoint,
                       const CheckpointMeta& meta) {
  if (meta.tokenizer.empty()) {
    return;
  }
  const std::string found = tokenizer_checksum(tokenizer);
  if (found == meta.tokenizer) {
    return;
  }
  const fs::path own = checkpoint_tokenizer(checkpoint, tokenizer);
  fail(ErrorCode::kInvalidData,
       "{} is not the tokenizer that {} was trained with: found checksum {}, expected {}{}",
       tokenizer.string(),
       checkpoint.string(),
       found,
       meta.tokenizer,
       own != tokenizer && tokenizer_checksum(own) == meta.tokenizer
           ? format("; that one is {}: name it in tokenizer.path", own.string())
           : "");
}

std::vector<std::string> all_changed_keys(const RunConfig& before, const RunConfig& now) {
  return changed(
      before, now, [](std::string_view /*section*/, std::string_view /*key*/) { return true; });
}

std::vector<std::string> changed_keys(const RunConfig& before,
                                      const RunConfig& now,
                                      std::int64_t step) {
  const bool same_sums = state_has_same_sums(before, now);
  const bool same_rates = have_same_rates(before, now, step);
  return changed(before, now, [&](std::string_view section, std::string_view key) {
    const bool has_no_part = (section == "state" && same_sums) ||
                             (key == "schedule.warmup" && is_usual_warmup(before, now)) ||
                             (key == "schedule.decay_ratio" && is_usual_decay(before, now));
    const bool counts =
        std::ranges::count(kKeysOfBits, section) + std::ranges::count(kKeysOfBits, key) > 0;
    return (counts && !has_no_part) || (key == "train.steps" && !same_rates);
  });
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
