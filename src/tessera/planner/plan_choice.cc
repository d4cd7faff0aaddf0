#include "tessera/planner/plan_choice.h"

#include <algorithm>

#include "tessera/base/format.h"

namespace tessera {
namespace {

std::string degree_text(std::int64_t degree) {
  return format("{}", degree);
}

std::string list_text(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) {
    text += format("{}{}", text.empty() ? "[" : ", ", number);
  }
  return text + "]";
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

}  // namespace

RunConfig with_choice(RunConfig config, const PlanChoice& choice) {
  config.parallel.ranks = choice.num_ranks();
  config.parallel.data.reset();
  config.parallel.tensor = choice.tensor;
  config.parallel.pipeline = choice.pipeline;
  config.train.microbatch = choice.microbatch;
  config.memory.recompute = choice.recompute ? Recompute::kFull : Recompute::kNone;
  if (choice.pipeline > 1) {
    config.pipeline.schedule = choice.schedule;
    config.pipeline.chunks = choice.chunks;
    config.pipeline.layers = choice.layers;
  } else {
    config.pipeline = {};
  }
  choose_state(config.state, choice.state);
  if (choice.float8) {
    config.float8.recipe = Float8Recipe::kRowwise;
  }
  return config;
}

std::vector<std::string> choice_overrides(const PlanChoice& choice) {
  std::vector<std::string> list;
  const auto set = [&](std::string_view key, std::string_view value) {
    list.push_back(format("--{}={}", key, value));
  };
  set("parallel.ranks", degree_text(choice.num_ranks()));
  set("parallel.tensor", degree_text(choice.tensor));
  set("parallel.pipeline", degree_text(choice.pipeline));
  if (choice.pipeline > 1) {
    set("pipeline.schedule", choice.schedule);
    set("pipeline.chunks", degree_text(choice.chunks));
    set("pipeline.layers", list_text(choice.layers));
  }
  set("state.preset", choice.state.preset);
  if (const std::optional<Placement>& degrees = choice.state.degrees) {
    set("state.param", degree_text(degrees->param));
    set("state.secondary", degree_text(degrees->secondary));
    set("state.grad", degree_text(degrees->grad));
    set("state.optimizer", degree_text(degrees->optimizer));
  }
  if (!choice.state.wire_param.empty()) {
    set("state.wire_param", choice.state.wire_param);
  }
  if (!choice.state.wire_grad.empty()) {
    set("state.wire_grad", choice.state.wire_grad);
  }
  if (choice.float8) {
    set("float8.recipe", "rowwise");
  }
  set("memory.recompute", choice.recompute ? "full" : "none");
  set("train.microbatch", degree_text(choice.microbatch));
  return list;
}

std::string mesh_words(const PlanChoice& choice) {
  return format("t{} p{} d{}", choice.tensor, choice.pipeline, choice.data);
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
  words += state.wire_param.empty() ? "" : format(" param-{}!", state.wire_param);
  words += state.wire_grad.empty() ? "" : format(" grad-{}!", state.wire_grad);
  return words + (choice.float8 ? " float8!" : "");
}

std::string schedule_words(const PlanChoice& choice) {
  if (choice.pipeline == 1) {
    return "-";
  }
  return choice.chunks == 1 ? choice.schedule : format("{} v{}", choice.schedule, choice.chunks);
}

std::string recompute_words(const PlanChoice& choice) {
  return choice.recompute ? "full" : "none";
}

std::string all_words(const PlanChoice& choice) {
  return format("{} {} {} {} b{}",
                mesh_words(choice),
                state_words(choice),
                schedule_words(choice),
                recompute_words(choice),
                choice.microbatch);
}

bool has_words(const PlanChoice& choice, std::string_view text) {
  const std::string words = format(" {} ", all_words(choice));
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t space = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, space - begin);
    if (!word.empty() && words.find(format(" {} ", word)) == std::string::npos) {
      return false;
    }
    begin = space + 1;
  }
  return true;
}

bool is_marked(const PlanChoice& choice) {
  return choice.float8 || !choice.state.wire_param.empty() || !choice.state.wire_grad.empty();
}

std::int64_t num_axes(const PlanChoice& choice) {
  const auto count = [](bool has) { return has ? std::int64_t{1} : std::int64_t{0}; };
  return count(choice.tensor > 1) + count(choice.pipeline > 1) + count(choice.data > 1) +
         count(choice.recompute) + count(choice.chunks > 1) + count(is_marked(choice)) +
         count(choice.pipeline > 1 && choice.schedule != "1f1b") +
         count(choice.state.preset != "ddp") + count(choice.state.preset.starts_with("hsdp")) +
         2 * count(choice.state.degrees.has_value());
}

}  // namespace tessera
