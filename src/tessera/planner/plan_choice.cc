#include "tessera/planner/plan_choice.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "tessera/base/format.h"
#include "tessera/config/config.h"

namespace tessera {
namespace {

// All that with_choice() may change.
constexpr std::array<std::string_view, 24> kSettledKeys = {
    "parallel.ranks",      "parallel.data",    "parallel.tensor",     "parallel.pipeline",
    "parallel.context",    "context.kind",     "context.balance",     "pipeline.schedule",
    "pipeline.chunks",     "pipeline.layers",  "pipeline.slices",     "state.preset",
    "state.param",         "state.secondary",  "state.secondary_use", "state.grad",
    "state.optimizer",     "state.wire_param", "state.wire_grad",     "state.wire_update",
    "comm.overlap_layers", "float8.recipe",    "memory.recompute",    "train.microbatch"};

std::string degree_text(std::int64_t degree) {
  return format("{}", degree);
}

// What a preset's wires are where no key says them: they stay when the preset goes.
void keep_preset_wires(StateSection& state) {
  const bool is_published = state.preset == "topo-int8";
  if (state.preset == "zeropp" || state.preset == "topo" || is_published) {
    state.wire_param = state.wire_param.value_or("int8");
    state.wire_grad = state.wire_grad.value_or("int4");
  }
  if (is_published) {
    state.wire_update = state.wire_update.value_or("int8");
  }
}

void choose_state(StateSection& state, const StateChoice& choice) {
  keep_preset_wires(state);
  state.preset = choice.preset;
  state.param.reset();
  state.secondary.reset();
  state.grad.reset();
  state.optimizer.reset();
  if (const std::optional<Placement>& degrees = choice.degrees) {
    state.param = degree_text(degrees->param);
    state.secondary = degree_text(degrees->secondary);
    state.grad = degree_text(degrees->grad);
    state.optimizer = degree_text(degrees->optimizer);
  }
  const bool has_second = choice.preset == "shard-grad-op" ||
                          (choice.degrees && choice.degrees->secondary < choice.degrees->param);
  if (!has_second) {
    state.secondary_use = SecondaryUse::kAll;
  }
  if (!choice.wire_param.empty()) {
    state.wire_param = choice.wire_param;
  }
  if (!choice.wire_grad.empty()) {
    state.wire_grad = choice.wire_grad;
  }
}

// "bf16 int8" as a part of a word.
std::string formats_word(std::string formats) {
  std::ranges::replace(formats, ' ', '/');
  return formats;
}

}  // namespace

RunConfig with_choice(RunConfig config, const PlanChoice& choice) {
  config.parallel.ranks = choice.num_ranks();
  config.parallel.data.reset();
  config.parallel.tensor = choice.tensor;
  config.parallel.context = choice.context;
  if (choice.context == 1) {
    config.context = {};
  }
  config.parallel.pipeline = choice.pipeline;
  config.train.microbatch = choice.microbatch;
  if (choice.recompute != config.memory.recompute) {
    config.memory.keep.clear();
    config.memory.recompute_ops.clear();
  }
  config.memory.recompute = choice.recompute;
  config.memory.recompute_layers = {};
  config.comm.overlap_layers = choice.overlap_layers;
  if (choice.pipeline > 1) {
    config.pipeline.schedule = choice.schedule;
    config.pipeline.chunks = choice.chunks;
    config.pipeline.layers = choice.layers;
  } else {
    config.pipeline = {};
  }
  choose_state(config.state, choice.state);
  if (choice.state_ranks() == 1) {
    // Nothing travels, and formats of several levels would be of none.
    config.state.wire_param.reset();
    config.state.wire_grad.reset();
    config.state.wire_update.reset();
  }
  if (choice.float8) {
    config.float8.recipe = Float8Recipe::kRowwise;
  }
  return config;
}

std::vector<std::string> choice_overrides(const RunConfig& config, const PlanChoice& choice) {
  const RunConfig chosen = with_choice(config, choice);
  std::vector<std::string> list;
  for (const std::string_view key : kSettledKeys) {
    list.push_back(override_text(chosen, key));
  }
  return list;
}

std::string mesh_words(const PlanChoice& choice) {
  return format("t{}{} p{} d{}",
                choice.tensor,
                choice.context > 1 ? format(" c{}", choice.context) : "",
                choice.pipeline,
                choice.data);
}

std::string state_words(const PlanChoice& choice) {
  const StateChoice& state = choice.state;
  std::string words = state.preset;
  if (const std::optional<Placement>& degrees = state.degrees) {
    words = degrees->secondary < degrees->param
                ? format("({}/{},{},{})",
                         degrees->param,
                         degrees->secondary,
                         degrees->grad,
                         degrees->optimizer)
                : format("({},{},{})", degrees->param, degrees->grad, degrees->optimizer);
  }
  words += choice.overlap_layers == 1 ? "" : format(" o{}", choice.overlap_layers);
  words += state.wire_param.empty() ? "" : format(" param-{}!", formats_word(state.wire_param));
  words += state.wire_grad.empty() ? "" : format(" grad-{}!", formats_word(state.wire_grad));
  return words + (choice.float8 ? " float8!" : "");
}

std::string schedule_words(const PlanChoice& choice) {
  if (choice.pipeline == 1) {
    return "-";
  }
  return choice.chunks == 1 ? choice.schedule : format("{} v{}", choice.schedule, choice.chunks);
}

std::string recompute_words(const PlanChoice& choice) {
  return std::string(to_string(choice.recompute));
}

std::string all_words(const PlanChoice& choice) {
  return format("{} {} {} {} b{}",
                mesh_words(choice),
                state_words(choice),
                schedule_words(choice),
                recompute_words(choice),
                choice.microbatch);
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t space = std::min(text.find(' ', begin), text.size());
    if (space > begin) {
      words.emplace_back(text.substr(begin, space - begin));
    }
    begin = space + 1;
  }
  return words;
}

bool has_words(const PlanChoice& choice, std::string_view text) {
  const std::string own = format(" {} ", all_words(choice));
  return std::ranges::all_of(split_words(text), [&](const std::string& word) {
    return own.find(format(" {} ", word)) != std::string::npos ||
           own.find(format(" {}! ", word)) != std::string::npos;
  });
}

bool is_marked(const PlanChoice& choice) {
  return choice.float8 || !choice.state.wire_param.empty() || !choice.state.wire_grad.empty();
}

std::int64_t num_axes(const PlanChoice& choice) {
  return std::ranges::count_if(
      std::array{choice.tensor, choice.context, choice.pipeline, choice.data},
      [](std::int64_t ranks) { return ranks > 1; });
}

}  // namespace tessera
