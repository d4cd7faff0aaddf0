#include "tessera/planner/find_plans.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/base/units.h"
#include "tessera/planner/planned_runs.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/simulated_run.h"

namespace tessera {
namespace {

// Plans so near to each other are not told apart by their time.
constexpr double kTie = 1.01;

// How loose a bound is depends on the schedule, and on whether states are cut.
std::size_t kind_of(const PlanChoice& choice) {
  return std::hash<std::string>()(format("{} {} {} {}",
                                         choice.schedule,
                                         choice.state.preset,
                                         recompute_words(choice),
                                         choice.overlap_layers));
}

// By how much a bound of memory is too small depends on what a pipeline holds, not on how states
// are cut.
std::size_t memory_kind_of(const PlanChoice& choice) {
  PlanChoice of_states = choice;
  of_states.state = {};
  return std::hash<std::string>()(all_words(of_states));
}

// That of the run file; none where it makes no run.
std::optional<PlanChoice> choice_of_file(const RunConfig& config,
                                         const Cluster& cluster,
                                         std::int64_t ranks) {
  const Target target = target_of(cluster);
  RunConfig own = config;
  own.parallel.ranks = ranks;
  own.run.device = to_string(target.kind);
  try {
    return choice_of(resolve(std::move(own), ConfigUse::kPlan), target);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidConfig) {
      throw;
    }
  }
  return std::nullopt;
}

// Whether it keeps little and is simple, so that it is likely to fit.
bool is_plain(const PlanChoice& choice, std::int64_t overlap_layers) {
  return choice.recompute == Recompute::kFull && choice.microbatch == 1 && !is_marked(choice) &&
         choice.overlap_layers == overlap_layers &&
         (choice.data == 1 || choice.state.preset == "fsdp" || choice.state.preset == "zero1") &&
         !choice.state.degrees && (choice.pipeline == 1 || choice.schedule == "1f1b");
}

// Plain plans of every mesh, of which one that fits is soon found.
std::vector<std::size_t> plain_plans(const std::vector<PlanChoice>& space,
                                     std::int64_t overlap_layers) {
  std::vector<std::size_t> plain;
  for (std::size_t i = 0; i < space.size(); ++i) {
    if (is_plain(space[i], overlap_layers)) {
      plain.push_back(i);
    }
  }
  return plain;
}

std::optional<std::size_t> place_of(const std::optional<PlanChoice>& choice,
                                    const std::vector<PlanChoice>& space) {
  const auto place = choice ? std::ranges::find(space, *choice) : space.end();
  return place == space.end() ? std::nullopt
                              : std::optional(static_cast<std::size_t>(place - space.begin()));
}

// Smaller is preferred among plans whose times are not told apart.
auto simplicity(const RankedPlan& plan) {
  return std::tuple(is_marked(plan.choice), num_axes(plan.choice), plan.outcome.memory);
}

// Of the first of what simplicity() compares in which the two differ.
std::string told_apart_by(const RankedPlan& plan, const RankedPlan& next) {
  if (is_marked(plan.choice) != is_marked(next.choice)) {
    return "the run file's formats";
  }
  if (num_axes(plan.choice) != num_axes(next.choice)) {
    return "fewest axes with several ranks";
  }
  return plan.outcome.memory != next.outcome.memory ? "least memory" : "shortest step";
}

// Puts the simplest of those first that are about as fast as the fastest.
void rank(const std::vector<PlanChoice>& space, const SearchResult& result, FoundPlans& found) {
  std::vector<RankedPlan>& plans = found.plans;
  for (std::size_t i = 0; i < space.size(); ++i) {
    const std::optional<PlanOutcome>& outcome = result.outcomes[i];
    if (outcome && !outcome->is_refused && outcome->fits) {
      plans.push_back({.choice = space[i], .outcome = *outcome});
    }
  }
  const auto seconds = [](const RankedPlan& plan) { return plan.outcome.seconds; };
  std::ranges::stable_sort(plans, {}, seconds);
  if (plans.empty()) {
    return;
  }
  const double most = kTie * plans.front().outcome.seconds;
  const auto end = std::ranges::find_if(
      plans, [&](const RankedPlan& plan) { return plan.outcome.seconds > most; });
  const auto proposed = std::ranges::min_element(plans.begin(), end, {}, simplicity);
  std::rotate(plans.begin(), proposed, proposed + 1);
  found.tied = end - plans.begin();
  if (found.tied > 1) {
    found.tied_by = told_apart_by(
        plans.front(), *std::ranges::min_element(plans.begin() + 1, end, {}, simplicity));
  }
}

// Why a plan cannot be compiled or timed: "t1 p1 ...: device.memory_bandwidth: found 0, ...";
// "" for one that can.
std::string refusal_of(const RunConfig& config, const Cluster& cluster, const PlanChoice& choice) {
  try {
    const SimulatedRun run(with_choice(config, choice), cluster);
    run.simulate();
  } catch (const Error& error) {
    return format("{}: {}", all_words(choice), error.what());
  }
  return "";
}

// Of the first that the search saw refused.
std::string first_refusal(const std::vector<PlanChoice>& space,
                          const SearchResult& result,
                          const RunConfig& config,
                          const Cluster& cluster) {
  for (std::size_t i = 0; i < space.size(); ++i) {
    if (result.bounds[i].is_refused || (result.outcomes[i] && result.outcomes[i]->is_refused)) {
      return refusal_of(config, cluster, space[i]);
    }
  }
  return "";
}

// The plan that takes least of those whose bounds are lowest; none where no plan can be compiled.
std::optional<RankedPlan> least_of(const std::vector<PlanChoice>& space,
                                   const SearchResult& result,
                                   const PlannedRuns& unlimited,
                                   const RunConfig& config) {
  constexpr std::size_t kTried = 8;
  std::vector<std::size_t> order(space.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t plan) { return result.bounds[plan].is_refused; });
  std::ranges::stable_sort(order, {}, [&](std::size_t plan) {
    const std::optional<PlanOutcome>& outcome = result.outcomes[plan];
    return outcome && outcome->memory > 0 ? outcome->memory : result.bounds[plan].memory;
  });
  std::optional<RankedPlan> least;
  for (std::size_t i = 0; i < std::min(kTried, order.size()); ++i) {
    PlanOutcome outcome = unlimited.evaluate(space[order[i]]);
    if (!outcome.is_refused && outcome.memory > 0 &&
        (!least || outcome.memory < least->outcome.memory)) {
      outcome.fits = false;
      outcome.limit = config.memory.limit_bytes > 0 ? config.memory.limit_bytes : outcome.limit;
      least = {.choice = space[order[i]], .outcome = outcome};
    }
  }
  return least;
}

// Where plans are told apart by what they send on a level, its bandwidth must be known.
void require_timed(const RunConfig& config, const Cluster& cluster, std::int64_t ranks) {
  const std::string source =
      cluster.source.empty() ? placed(config, "cluster.file") : cluster.source;
  std::int64_t inside = 1;
  for (const Level& level : cluster.levels) {
    const bool is_used = level.size > 1 && inside < ranks;
    TESSERA_REQUIRE(!is_used || level.bandwidth > 0.0,
                    ErrorCode::kInvalidConfig,
                    "{}: bandwidth of level {}: found 0, which says that it is not known, expected "
                    "the bytes/s of a device there: what plans send on it would take no time",
                    source,
                    level.name);
    inside *= level.size;
  }
}

// At most so many of the causes, each once.
std::string causes_text(const std::vector<std::string>& causes) {
  constexpr std::size_t kShown = 6;
  std::string text;
  std::size_t shown = 0;
  for (; shown < std::min(kShown, causes.size()); ++shown) {
    text += "\n  " + causes[shown];
  }
  return text + (causes.size() > shown ? format("\n  and {} more", causes.size() - shown) : "");
}

std::vector<PlanChoice> space_of(const RunConfig& config,
                                 const Cluster& cluster,
                                 std::int64_t ranks,
                                 const AllowedChoices& allowed) {
  const RunConfig filled = filled_in(config, cluster, ranks);
  std::vector<PlanChoice> space = plan_space(filled, cluster, ranks, allowed);
  TESSERA_REQUIRE(!space.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, and no plan divides the run among so many: expected ranks that "
                  "one of these takes, or another train.global_batch{}",
                  placed(config, "parallel.ranks"),
                  ranks,
                  causes_text(left_out_of_space(filled, cluster, ranks, allowed)));
  return space;
}

// Every word that plans have, once.
std::string known_words(const std::vector<PlanChoice>& space) {
  std::set<std::string> known;
  std::string text;
  for (const PlanChoice& choice : space) {
    for (const std::string& word : split_words(all_words(choice))) {
      if (word != "-" && known.insert(word).second) {
        text += (text.empty() ? "" : " ") + word;
      }
    }
  }
  return text;
}

void require_words(const std::vector<PlanChoice>& space, std::string_view text) {
  const auto some_have = [&](std::string_view words) {
    return std::ranges::any_of(space,
                               [&](const PlanChoice& choice) { return has_words(choice, words); });
  };
  const std::vector<std::string> words = split_words(text);
  TESSERA_REQUIRE(!words.empty(),
                  ErrorCode::kInvalidConfig,
                  "--why=\"{}\": found no words, expected some of a plan's, as in --why=\"{}\"",
                  text,
                  all_words(space.front()));
  for (const std::string& word : words) {
    TESSERA_REQUIRE(some_have(word),
                    ErrorCode::kInvalidConfig,
                    "--why=\"{}\": no plan of this space has the word \"{}\": expected some of {}",
                    text,
                    word,
                    known_words(space));
  }
  TESSERA_REQUIRE(some_have(text),
                  ErrorCode::kInvalidConfig,
                  "--why=\"{}\": no plan of this space has all of these words: expected words of "
                  "one plan, as in --why=\"{}\"",
                  text,
                  all_words(space.front()));
}

// What became of the run file's plan.
void add_own(const std::vector<PlanChoice>& space,
             const std::optional<PlanChoice>& own,
             const SearchResult& result,
             const PlannedRuns& runs,
             FoundPlans& found) {
  if (const std::optional<std::size_t> place = place_of(own, space)) {
    found.own = result.outcomes[*place];
  }
  if (found.own && !found.own->is_refused && found.own->memory > 0) {
    return;
  }
  try {
    found.own = runs.evaluate_own(found.ranks);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidConfig && error.code() != ErrorCode::kUnsupported &&
        error.code() != ErrorCode::kOutOfMemory) {
      throw;
    }
    found.own.reset();
    found.own_problem = error.what();
  }
}

}  // namespace

double FoundPlans::gap() const {
  return plans.front().outcome.seconds / lower - 1.0;
}

std::int64_t planned_ranks(const RunConfig& config, const Cluster& cluster) {
  const ParallelSection& parallel = config.parallel;
  if (parallel.ranks) {
    return *parallel.ranks;
  }
  return parallel.data ? *parallel.data * parallel.ranks_of_data() : cluster.num_devices();
}

RunConfig without_limit(RunConfig config) {
  config.memory.limit_bytes = 0;
  return config;
}

FoundPlans find_plans_or_least(const RunConfig& config,
                               const Cluster& cluster,
                               const PlannerOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t ranks = planned_ranks(config, cluster);
  TESSERA_REQUIRE(ranks <= cluster.num_devices(),
                  ErrorCode::kInvalidConfig,
                  "{}: found {} ranks, expected at most the {} devices of {}",
                  placed(config, "parallel.ranks"),
                  ranks,
                  cluster.num_devices(),
                  cluster.name);
  require_timed(config, cluster, ranks);
  std::vector<PlanChoice> space = space_of(config, cluster, ranks, options.allowed);
  const std::optional<PlanChoice> own = choice_of_file(config, cluster, ranks);
  if (own && std::ranges::find(space, *own) == space.end()) {
    space.push_back(*own);
  }
  if (!options.why.empty()) {
    require_words(space, options.why);
  }
  if (!options.words.empty()) {
    require_words(space, options.words);
  }
  std::erase_if(space, [&](const PlanChoice& choice) { return !has_words(choice, options.words); });
  const PlannedRuns runs(config, cluster, ranks);
  const SearchProblem problem = {
      .size = space.size(),
      .num_bounds = PlannedRuns::kNumBounds,
      .bound = [&](std::size_t plan, int number) { return runs.bound(space[plan], number); },
      .evaluate = [&](std::size_t plan) { return runs.evaluate(space[plan]); },
      .kind = [&](std::size_t plan) { return kind_of(space[plan]); },
      .memory_kind = [&](std::size_t plan) { return memory_kind_of(space[plan]); },
      .own = place_of(own, space),
      .plain = plain_plans(space, config.comm.overlap_layers)};
  const SearchResult result = search(problem, options.search);
  FoundPlans found = {.ranks = ranks,
                      .tokens_per_step = config.train.global_batch * config.data.sequence_length,
                      .size = std::ssize(space),
                      .refused = result.refused,
                      .too_large = result.too_large,
                      .cut = result.cut,
                      .open = result.open,
                      .simulated = result.simulated,
                      .lower = result.lower,
                      .ran_out = result.ran_out,
                      .plans = {}};
  rank(space, result, found);
  found.refusal = first_refusal(space, result, config, cluster);
  if (found.plans.empty() && !found.ran_out) {
    const RunConfig unlimited = without_limit(config);
    found.least = least_of(space, result, {unlimited, cluster, ranks}, config);
    TESSERA_REQUIRE(
        found.least.has_value(),
        ErrorCode::kInvalidConfig,
        "none of {} can be compiled and timed: {}",
        format_plural(found.size, "plan"),
        found.refusal.empty() ? refusal_of(unlimited, cluster, space.front()) : found.refusal);
    return found;
  }
  TESSERA_REQUIRE(!found.plans.empty(),
                  ErrorCode::kInvalidConfig,
                  "no plan was simulated in {:g} s: expected more time (--seconds)",
                  options.search.seconds);
  add_own(space, own, result, runs, found);
  found.took = seconds_since(start);
  return found;
}

FoundPlans find_plans(const RunConfig& config,
                      const Cluster& cluster,
                      const PlannerOptions& options) {
  FoundPlans found = find_plans_or_least(config, cluster, options);
  if (found.least) {
    fail(ErrorCode::kOutOfMemory,
         "none of {} fits: the least that was found is {}, which needs {} of a rank's {}; shorter "
         "sequences (data.sequence_length), optimizer.moments = \"bf16\" or more ranks need less",
         format_plural(found.size, "plan"),
         all_words(found.least->choice),
         format_bytes(found.least->outcome.memory),
         format_bytes(found.least->outcome.limit));
  }
  return found;
}

}  // namespace tessera
