#include "tessera/planner/space.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "tessera/actions/schedules.h"
#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/mesh/mesh.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/resolve_layout.h"
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

// What a search takes for the run's own: what "auto" would choose is among what it finds.
Recompute own_recompute(const RunConfig& config) {
  const Recompute own = config.memory.recompute;
  return own == Recompute::kAuto ? Recompute::kNone : own;
}

// None, all and the run's own; and where that is allowed, every kind. A pipeline alone has a last
// stage that may be spared.
std::vector<Recompute> recompute_choices(const RunConfig& config,
                                         std::int64_t pipeline,
                                         bool allowed) {
  using enum Recompute;
  std::vector<Recompute> found;
  for (const Recompute kind :
       {kNone, kFull, kSelective, kAttention, kEverySecondProduct, kFullButLastStage}) {
    const bool is_usual = kind == kNone || kind == kFull || kind == own_recompute(config);
    if ((allowed || is_usual) && (kind != kFullButLastStage || pipeline > 1)) {
      found.push_back(kind);
    }
  }
  return found;
}

// The run's own; and where it is allowed and there is anything to be moved beside others, one and
// two layers ahead.
std::vector<std::int64_t> overlap_choices(const RunConfig& config,
                                          std::int64_t ranks,
                                          bool allowed) {
  std::vector<std::int64_t> found = {config.comm.overlap_layers};
  for (const std::int64_t layers : {1, 2}) {
    if (allowed && ranks > 1 && config.comm.overlap && layers != config.comm.overlap_layers) {
      found.push_back(layers);
    }
  }
  return found;
}

// The run's own; where it is allowed, all that divide the ranks that are left.
std::vector<std::int64_t> context_choices(const RunConfig& config,
                                          std::int64_t left,
                                          bool allowed) {
  return allowed ? divisors(left) : std::vector{config.parallel.context};
}

class ChoiceSpace {
 public:
  ChoiceSpace(const RunConfig& config, const Cluster& cluster, const AllowedChoices& allowed)
      : config_(config),
        cluster_(cluster),
        allowed_(allowed),
        layers_(config.model.layers.value_or(1)),
        schedules_(layers_, config.pipeline.slices) {}

  void add_ranks(std::int64_t ranks) {
    for (const std::int64_t tensor : divisors(ranks)) {
      for (const std::int64_t context :
           context_choices(config_, ranks / tensor, allowed_.context)) {
        add_pipelines(ranks, tensor, context);
      }
    }
  }

  std::vector<PlanChoice> take() { return std::move(found_); }

  std::vector<std::string> take_left_out() { return std::move(left_out_); }

 private:
  void add_pipelines(std::int64_t ranks, std::int64_t tensor, std::int64_t context) {
    const std::int64_t heads = config_.model.heads.value_or(1);
    if (ranks / tensor % context != 0) {
      leave_out({.tensor = tensor, .context = context},
                "parallel.context = {} does not divide the {} ranks that are left of {}",
                context,
                ranks / tensor,
                ranks);
      return;
    }
    for (const std::int64_t pipeline : divisors(ranks / tensor / context)) {
      const PlanChoice choice = {.tensor = tensor,
                                 .context = context,
                                 .pipeline = pipeline,
                                 .data = ranks / tensor / context / pipeline};
      if (heads % tensor != 0) {
        leave_out(choice, "model.heads = {} is not divided by {} tensor ranks", heads, tensor);
      } else if (pipeline > layers_) {
        leave_out(choice, "model.layers = {} is less than {} pipeline ranks", layers_, pipeline);
      } else if (config_.train.global_batch % choice.data != 0) {
        leave_out(choice,
                  "train.global_batch = {} is not divided by {} data ranks",
                  config_.train.global_batch,
                  choice.data);
      } else {
        add_mesh(choice);
      }
    }
  }

  template <class... Args>
  void leave_out(const PlanChoice& choice, fmt::format_string<Args...> text, Args&&... args) {
    left_out_.push_back(
        format("{}: {}", mesh_words(choice), format(text, std::forward<Args>(args)...)));
  }

  // Whether `body` breaks no rule; one that it breaks is noted.
  template <class Body>
  bool is_allowed(const PlanChoice& choice, const Body& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      if (!is_refused(error)) {
        throw;
      }
      leave_out(choice, "{}", error.message());
      return false;
    }
  }

  void add_mesh(PlanChoice choice) {
    std::vector<StateChoice> states;
    const bool has_mesh = is_allowed(choice, [&] {
      states = state_choices(config_, make_mesh(cluster_, choice.degrees()), allowed_);
    });
    const std::int64_t sequences = config_.train.global_batch / choice.data;
    for (const std::int64_t microbatch : divisors(sequences)) {
      choice.microbatch = microbatch;
      choice.num_microbatches = sequences / microbatch;
      if (has_mesh) {
        add_microbatch(choice, states);
      }
    }
  }

  std::vector<std::int64_t> layers_of(const PlanChoice& choice) const {
    return choice.pipeline == 1
               ? std::vector<std::int64_t>()
               : even_layers(layers_, choice.pipeline * choice.chunks, layers_of_head(config_));
  }

  void add_microbatch(PlanChoice choice, const std::vector<StateChoice>& states) {
    const std::vector<ScheduleChoice> schedules =
        schedules_.of(choice.pipeline, choice.num_microbatches);
    if (schedules.empty()) {
      leave_out(choice, "no schedule takes {} microbatches", choice.num_microbatches);
      return;
    }
    choice.schedule = schedules.front().schedule;
    choice.chunks = schedules.front().chunks;
    choice.layers = layers_of(choice);
    // The rules of the run file take all placements alike.
    const bool is_valid = is_allowed(choice, [&] {
      RunConfig config = with_choice(config_, choice);
      config.parallel.data = choice.data;
      validate(config, ConfigUse::kPlan);
    });
    for (const auto& [schedule, chunks] : schedules) {
      choice.schedule = schedule;
      choice.chunks = chunks;
      choice.layers = layers_of(choice);
      if (is_valid) {
        add_states(choice, states);
      }
    }
  }

  void add_states(PlanChoice choice, const std::vector<StateChoice>& states) {
    const bool adds_float8 = allowed_.float8 && config_.float8.recipe == Float8Recipe::kOff;
    for (const bool float8 : {false, true}) {
      for (const Recompute recompute :
           recompute_choices(config_, choice.pipeline, allowed_.recompute)) {
        for (const std::int64_t overlap_layers :
             overlap_choices(config_, choice.state_ranks(), allowed_.overlap)) {
          for (const StateChoice& state : states) {
            if (!float8 || adds_float8) {
              choice.float8 = float8;
              choice.recompute = recompute;
              choice.overlap_layers = overlap_layers;
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
  const AllowedChoices& allowed_;
  std::int64_t layers_;
  ScheduleChoices schedules_;
  std::vector<PlanChoice> found_;
  std::vector<std::string> left_out_;
};

// What the word allows; null for other words.
bool* choice_of_word(AllowedChoices& allowed, std::string_view word) {
  constexpr std::array<std::pair<std::string_view, bool AllowedChoices::*>, 6> kWords = {
      {{"int8", &AllowedChoices::int8},
       {"int4", &AllowedChoices::int4},
       {"float8", &AllowedChoices::float8},
       {"context", &AllowedChoices::context},
       {"overlap", &AllowedChoices::overlap},
       {"recompute", &AllowedChoices::recompute}}};
  for (const auto& [name, choice] : kWords) {
    if (name == word) {
      return &(allowed.*choice);
    }
  }
  return nullptr;
}

}  // namespace

AllowedChoices parse_allowed(std::string_view text) {
  AllowedChoices allowed;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, comma - begin);
    bool* const known = choice_of_word(allowed, word);
    TESSERA_REQUIRE(known != nullptr,
                    ErrorCode::kInvalidConfig,
                    "--allow={}: found \"{}\", expected a list of int8, int4, float8, context, "
                    "overlap and recompute",
                    text,
                    word);
    *known = true;
    begin = comma + 1;
  }
  return allowed;
}

RunConfig filled_in(const RunConfig& config, const Cluster& cluster, std::int64_t ranks) {
  TESSERA_REQUIRE(config.memory.recompute_layers.is_all(),
                  ErrorCode::kInvalidConfig,
                  "{}: found \"{}\", and plans recompute all layers alike: leave it out",
                  placed(config, "memory.recompute_layers"),
                  to_string(config.memory.recompute_layers));
  RunConfig filled =
      with_choice(config, {.data = ranks, .overlap_layers = config.comm.overlap_layers});
  filled.run.device = to_string(target_of(cluster).kind);
  // Whether the batch divides, and whether gradients are added up, is asked of each plan.
  filled.train.global_batch *= ranks;
  filled.optimizer.gradients = DType::kF32;
  filled = resolve(std::move(filled), ConfigUse::kPlan);
  filled.train.global_batch = config.train.global_batch;
  filled.optimizer.gradients = config.optimizer.gradients;
  filled.parallel.context = config.parallel.context;
  filled.context = config.context;
  filled.pipeline.slices = config.pipeline.slices;
  filled.memory = config.memory;
  return filled;
}

std::vector<PlanChoice> plan_space(const RunConfig& config,
                                   const Cluster& cluster,
                                   std::int64_t ranks,
                                   const AllowedChoices& allowed) {
  ChoiceSpace space(config, cluster, allowed);
  space.add_ranks(ranks);
  return space.take();
}

std::vector<std::string> left_out_of_space(const RunConfig& config,
                                           const Cluster& cluster,
                                           std::int64_t ranks,
                                           const AllowedChoices& allowed) {
  ChoiceSpace space(config, cluster, allowed);
  space.add_ranks(ranks);
  return space.take_left_out();
}

std::optional<PlanChoice> choice_of(const RunConfig& config, const Target& target) {
  if (config.parallel.pipeline > 1 && is_table(config.pipeline)) {
    return std::nullopt;
  }
  const RunLayout layout = resolve_layout(config).layout;
  PlanChoice choice = {.tensor = config.parallel.tensor,
                       .context = config.parallel.context,
                       .pipeline = config.parallel.pipeline,
                       .data = config.parallel.data.value_or(1),
                       .microbatch = config.train.microbatch,
                       .recompute = own_recompute(config),
                       .state = state_choice(layout.placement, layout.mesh),
                       .overlap_layers = config.comm.overlap_layers};
  choice.num_microbatches = config.train.global_batch / (choice.data * choice.microbatch);
  if (choice.pipeline > 1) {
    const PlannedRun run = plan_run(config, resolve_model(config), target);
    const PipelineSchedule schedule = parse_pipeline_schedule(config.pipeline.schedule);
    choice.schedule = name(schedule);
    choice.chunks = config.pipeline.chunks.value_or(default_chunks(schedule));
    choice.layers = run.plan.pipeline->layers;
  }
  return choice;
}

}  // namespace tessera
