#include "tessera/planner/space.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "tessera/actions/schedules.h"
#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/mesh/mesh.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/simulated_run.h"

namespace tessera {
namespace {

// A schedule is a list of actions; plans with longer ones are left out.
constexpr std::int64_t kMostForwards = 65536;

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> found;
  for (std::int64_t divisor = 1; divisor <= number / divisor; ++divisor) {
    if (number % divisor == 0) {
      found.push_back(divisor);
      if (divisor != number / divisor) {
        found.push_back(number / divisor);
      }
    }
  }
  std::ranges::sort(found);
  return found;
}

bool is_refused(const Error& error) {
  return error.code() == ErrorCode::kInvalidConfig || error.code() == ErrorCode::kInvalidArgument;
}

struct ScheduleChoice {
  std::string schedule = {};
  std::int64_t chunks = 1;
};

// Those that take so many ranks, microbatches and layers.
class ScheduleChoices {
 public:
  ScheduleChoices(std::int64_t layers, std::int64_t slices) : layers_(layers), slices_(slices) {}

  const std::vector<ScheduleChoice>& of(std::int64_t ranks, std::int64_t microbatches) {
    const auto [entry, is_new] = found_.try_emplace({ranks, microbatches});
    if (is_new) {
      entry->second = find(ranks, microbatches);
    }
    return entry->second;
  }

 private:
  std::vector<ScheduleChoice> find(std::int64_t ranks, std::int64_t microbatches) const {
    if (ranks == 1) {
      return {{}};
    }
    std::vector<ScheduleChoice> found;
    for (const PipelineSchedule schedule : kPipelineSchedules) {
      if (slices_ > 1 && !takes_slices(schedule)) {
        continue;
      }
      std::int64_t chunks = default_chunks(schedule);
      for (; ranks * chunks <= layers_; chunks *= 2) {
        if (is_taken({.schedule = schedule,
                      .ranks = ranks,
                      .chunks = chunks,
                      .microbatches = microbatches,
                      .slices = slices_})) {
          found.push_back({.schedule = std::string(name(schedule)), .chunks = chunks});
        }
      }
    }
    return found;
  }

  static bool is_taken(const ScheduleRequest& request) {
    if (request.ranks * request.chunks * request.microbatches * request.slices > kMostForwards) {
      return false;
    }
    try {
      require_chunks(request);
      make_table(request);
      return true;
    } catch (const Error& error) {
      if (!is_refused(error)) {
        throw;
      }
      return false;
    }
  }

  std::int64_t layers_;
  std::int64_t slices_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<ScheduleChoice>> found_;
};

// What the head costs of the FLOP of a layer.
double layers_of_head(const RunConfig& config) {
  const ModelSection& model = config.model;
  const auto number = [](const std::optional<std::int64_t>& value) {
    return static_cast<double>(value.value_or(1));
  };
  const double dim = number(model.dim);
  const double heads = number(model.heads);
  const double wide = model.head_dim ? number(model.head_dim) : dim / heads;
  const double kv_heads = model.kv_heads ? number(model.kv_heads) : heads;
  const double attention = 2.0 * dim * wide * (heads + kv_heads) +
                           heads * wide * static_cast<double>(config.data.sequence_length);
  return number(model.vocab) * dim / (attention + 3.0 * dim * number(model.ffn));
}

// Layers for each of so many stages, of which the last has the head, too: as even as can be. What
// is left over goes to late stages, which keep fewer microbatches.
std::vector<std::int64_t> even_layers(std::int64_t layers, std::int64_t stages, double head) {
  const double even = (static_cast<double>(layers) + head) / static_cast<double>(stages);
  const auto last = std::clamp<std::int64_t>(std::llround(even - head), 0, layers - stages + 1);
  std::vector<std::int64_t> split(static_cast<std::size_t>(stages), (layers - last) / (stages - 1));
  split.back() = last;
  const auto left = static_cast<std::size_t>((layers - last) % (stages - 1));
  for (std::size_t i = 0; i < left; ++i) {
    ++split[split.size() - 2 - i];
  }
  return split;
}

// The preset with these degrees, or the degrees themselves.
StateChoice named(const Placement& placement, const std::vector<DataLevel>& levels) {
  const auto [param, secondary, grad, optimizer] = placement;
  const std::int64_t all = levels.back().degree;
  if (param == 1) {
    if (optimizer == 1) {
      return {.preset = "ddp"};
    }
    if (optimizer == all && (grad == 1 || grad == all)) {
      return {.preset = grad == 1 ? "zero1" : "zero2"};
    }
  }
  if (param == grad && grad == optimizer && secondary == param) {
    if (param == all) {
      return {.preset = "fsdp"};
    }
    const auto level = std::ranges::find(levels, param, &DataLevel::degree);
    return {.preset = format("hsdp@{}", level->name)};
  }
  if (param == all && secondary == 1) {
    return {.preset = "shard-grad-op"};
  }
  return {.preset = "fsdp", .degrees = placement};
}

// Every placement on the data ranks of a mesh: param | grad | optimizer, secondary | param.
std::vector<StateChoice> state_choices(const Mesh& mesh) {
  const std::vector<DataLevel> levels = data_levels(mesh);
  if (levels.empty()) {
    return {{}};
  }
  const std::vector<std::int64_t> degrees = data_degrees(mesh);
  std::vector<StateChoice> found;
  for (std::size_t o = 0; o < degrees.size(); ++o) {
    for (std::size_t g = 0; g <= o; ++g) {
      for (std::size_t p = 0; p <= g; ++p) {
        for (std::size_t s = 0; s <= p; ++s) {
          found.push_back(named({.param = degrees[p],
                                 .secondary = degrees[s],
                                 .grad = degrees[g],
                                 .optimizer = degrees[o]},
                                levels));
        }
      }
    }
  }
  return found;
}

// With every wire that is allowed, the plain one first.
std::vector<StateChoice> with_wires(const std::vector<StateChoice>& plain,
                                    const AllowedFormats& allowed) {
  std::vector<StateChoice> found = plain;
  for (const StateChoice& state : plain) {
    std::vector<std::string> params = {""};
    std::vector<std::string> grads = {""};
    if (allowed.int8 && state.preset != "ddp") {
      params.emplace_back("int8");
    }
    if (allowed.int8) {
      grads.emplace_back("int8");
    }
    if (allowed.int4) {
      grads.emplace_back("int4");
    }
    for (const std::string& param : params) {
      for (const std::string& grad : grads) {
        if (!param.empty() || !grad.empty()) {
          found.push_back(state);
          found.back().wire_param = param;
          found.back().wire_grad = grad;
        }
      }
    }
  }
  return found;
}

class Space {
 public:
  Space(const RunConfig& config, const Cluster& cluster, const AllowedFormats& allowed)
      : config_(config),
        cluster_(cluster),
        allowed_(allowed),
        schedules_(config.model.layers.value_or(1), config.pipeline.slices) {}

  void add_mesh(std::int64_t tensor, std::int64_t pipeline, std::int64_t data) {
    PlanChoice choice = {.tensor = tensor, .pipeline = pipeline, .data = data};
    if (config_.train.global_batch % data != 0) {
      return;
    }
    std::vector<StateChoice> states;
    try {
      states = state_choices(
          make_mesh(cluster_, {.data = data, .tensor = tensor, .pipeline = pipeline}));
    } catch (const Error& error) {
      if (!is_refused(error)) {
        throw;
      }
      return;
    }
    if (data > 1) {
      states = with_wires(states, allowed_);
    }
    const std::int64_t sequences = config_.train.global_batch / data;
    for (const std::int64_t microbatch : divisors(sequences)) {
      choice.microbatch = microbatch;
      choice.num_microbatches = sequences / microbatch;
      add_microbatch(choice, states);
    }
  }

  std::vector<PlanChoice> take() { return std::move(found_); }

 private:
  // Whether the rules of the run file have it; all placements alike.
  bool is_valid(const PlanChoice& choice) const {
    try {
      RunConfig config = with_choice(config_, choice);
      config.parallel.data = choice.data;
      validate(config, ConfigUse::kPlan);
      return true;
    } catch (const Error& error) {
      if (!is_refused(error)) {
        throw;
      }
      return false;
    }
  }

  std::vector<std::int64_t> layers_of(const PlanChoice& choice) const {
    return choice.pipeline == 1 ? std::vector<std::int64_t>()
                                : even_layers(config_.model.layers.value_or(1),
                                              choice.pipeline * choice.chunks,
                                              layers_of_head(config_));
  }

  void add_microbatch(PlanChoice choice, const std::vector<StateChoice>& states) {
    const std::vector<ScheduleChoice> schedules =
        schedules_.of(choice.pipeline, choice.num_microbatches);
    if (schedules.empty()) {
      return;
    }
    choice.schedule = schedules.front().schedule;
    choice.chunks = schedules.front().chunks;
    choice.layers = layers_of(choice);
    if (!is_valid(choice)) {
      return;
    }
    const bool adds_float8 = allowed_.float8 && config_.float8.recipe == Float8Recipe::kOff;
    for (const bool float8 : {false, true}) {
      for (const bool recompute : {false, true}) {
        for (const auto& [schedule, chunks] : schedules) {
          for (const StateChoice& state : states) {
            if (!float8 || adds_float8) {
              choice.float8 = float8;
              choice.recompute = recompute;
              choice.schedule = schedule;
              choice.chunks = chunks;
              choice.layers = layers_of(choice);
              choice.state = state;
              found_.push_back(choice);
            }
          }
        }
      }
    }
  }

  const RunConfig& config_;
  const Cluster& cluster_;
  const AllowedFormats& allowed_;
  ScheduleChoices schedules_;
  std::vector<PlanChoice> found_;
};

}  // namespace

AllowedFormats parse_allowed(std::string_view text) {
  AllowedFormats allowed;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, comma - begin);
    bool* const known = word == "int8"     ? &allowed.int8
                        : word == "int4"   ? &allowed.int4
                        : word == "float8" ? &allowed.float8
                                           : nullptr;
    TESSERA_REQUIRE(known != nullptr,
                    ErrorCode::kInvalidConfig,
                    "--allow={}: found \"{}\", expected a list of int8, int4 and float8",
                    text,
                    word);
    *known = true;
    begin = comma + 1;
  }
  return allowed;
}

RunConfig filled_in(const RunConfig& config, const Cluster& cluster, std::int64_t ranks) {
  RunConfig filled = with_choice(config, {.data = ranks});
  filled.run.device = to_string(target_of(cluster).kind);
  // Whether the batch divides, and whether gradients are added up, is asked of each plan.
  filled.train.global_batch *= ranks;
  filled.optimizer.gradients = DType::kF32;
  filled = resolve(std::move(filled), ConfigUse::kPlan);
  filled.train.global_batch = config.train.global_batch;
  filled.optimizer.gradients = config.optimizer.gradients;
  return filled;
}

std::vector<PlanChoice> plan_space(const RunConfig& config,
                                   const Cluster& cluster,
                                   std::int64_t ranks,
                                   const AllowedFormats& allowed) {
  Space space(config, cluster, allowed);
  const std::int64_t heads = config.model.heads.value_or(1);
  for (const std::int64_t tensor : divisors(ranks)) {
    if (heads % tensor != 0) {
      continue;
    }
    for (const std::int64_t pipeline : divisors(ranks / tensor)) {
      if (pipeline <= config.model.layers.value_or(1)) {
        space.add_mesh(tensor, pipeline, ranks / tensor / pipeline);
      }
    }
  }
  return space.take();
}

PlanChoice choice_of(const RunConfig& config) {
  PlanChoice choice = {.tensor = config.parallel.tensor,
                       .pipeline = config.parallel.pipeline,
                       .data = config.parallel.data.value_or(1),
                       .microbatch = config.train.microbatch,
                       .recompute = config.memory.recompute == Recompute::kFull,
                       .state = {.preset = config.state.preset}};
  choice.num_microbatches = config.train.global_batch / (choice.data * choice.microbatch);
  if (choice.pipeline > 1) {
    choice.schedule = config.pipeline.schedule;
    choice.chunks = config.pipeline.chunks.value_or(
        is_table(config.pipeline)
            ? 1
            : default_chunks(parse_pipeline_schedule(config.pipeline.schedule)));
  }
  return choice;
}

}  // namespace tessera
