#include "tessera/planner/find_plans.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
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
  return std::hash<std::string>()(
      format("{} {} {}", choice.schedule, choice.state.preset, choice.recompute));
}

// That of the run file; none where it makes no run.
std::optional<PlanChoice> choice_of_file(const RunConfig& config,
                                         const Cluster& cluster,
                                         std::int64_t ranks) {
  RunConfig own = config;
  own.parallel.ranks = ranks;
  own.run.device = to_string(target_of(cluster).kind);
  try {
    return choice_of(resolve(std::move(own), ConfigUse::kPlan));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidConfig) {
      throw;
    }
  }
  return std::nullopt;
}

// Whether it keeps little and is simple, so that it is likely to fit.
bool is_plain(const PlanChoice& choice) {
  return choice.recompute && choice.microbatch == 1 && !is_marked(choice) &&
         (choice.data == 1 || choice.state.preset == "fsdp" || choice.state.preset == "zero1") &&
         !choice.state.degrees && (choice.pipeline == 1 || choice.schedule == "1f1b");
}

// The run file's plan, and plain ones of every mesh, of which one that fits is soon found.
std::vector<std::size_t> first_plans(const std::vector<PlanChoice>& space,
                                     const std::optional<PlanChoice>& own) {
  std::vector<std::size_t> first;
  for (std::size_t i = 0; i < space.size(); ++i) {
    if (space[i] == own) {
      first.insert(first.begin(), i);
    } else if (is_plain(space[i])) {
      first.push_back(i);
    }
  }
  return first;
}

std::vector<RankedPlan> ranked(const std::vector<PlanChoice>& space, const SearchResult& found) {
  std::vector<RankedPlan> plans;
  for (std::size_t i = 0; i < space.size(); ++i) {
    const std::optional<PlanOutcome>& outcome = found.outcomes[i];
    if (outcome && !outcome->is_refused && outcome->fits) {
      plans.push_back({.choice = space[i], .outcome = *outcome});
    }
  }
  const auto seconds = [](const RankedPlan& plan) { return plan.outcome.seconds; };
  std::ranges::stable_sort(plans, {}, seconds);
  if (plans.empty()) {
    return plans;
  }
  const double most = std::max(plans.front().outcome.seconds, kTie * found.lower);
  const auto end = std::ranges::find_if(
      plans, [&](const RankedPlan& plan) { return plan.outcome.seconds > most; });
  const auto proposed =
      std::ranges::min_element(plans.begin(), end, {}, [](const RankedPlan& plan) {
        return std::tuple(num_axes(plan.choice), plan.outcome.memory);
      });
  std::rotate(plans.begin(), proposed, proposed + 1);
  return plans;
}

// The plan that takes least of those whose bounds are lowest.
[[noreturn]] void refuse_all(const std::vector<PlanChoice>& space,
                             const SearchResult& found,
                             const PlannedRuns& runs) {
  constexpr std::size_t kTried = 8;
  std::vector<std::size_t> order(space.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t plan) { return found.bounds[plan].is_refused; });
  std::ranges::stable_sort(order, {}, [&](std::size_t plan) {
    const std::optional<PlanOutcome>& outcome = found.outcomes[plan];
    return outcome && !outcome->is_refused ? outcome->memory : found.bounds[plan].memory;
  });
  std::optional<RankedPlan> least;
  for (std::size_t i = 0; i < std::min(kTried, order.size()); ++i) {
    const PlanOutcome outcome = runs.evaluate(space[order[i]]);
    if (!outcome.is_refused && outcome.memory > 0 &&
        (!least || outcome.memory < least->outcome.memory)) {
      least = {.choice = space[order[i]], .outcome = outcome};
    }
  }
  TESSERA_REQUIRE(least.has_value(),
                  ErrorCode::kInvalidConfig,
                  "no plan of this space is one that Tessera can compile: see what `tessera "
                  "explain` says of the run");
  fail(ErrorCode::kOutOfMemory,
       "none of {} plans fits: the least that was found is {}, which needs {} of a rank's {}; "
       "shorter sequences (data.sequence_length), optimizer.moments = \"bf16\" or more ranks need "
       "less",
       format_grouped(std::ssize(space)),
       all_words(least->choice),
       format_bytes(least->outcome.memory),
       format_bytes(least->outcome.limit));
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
  return parallel.data ? *parallel.data * parallel.tensor * parallel.pipeline
                       : cluster.num_devices();
}

FoundPlans find_plans(const RunConfig& config,
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
  std::vector<PlanChoice> space =
      plan_space(filled_in(config, cluster, ranks), cluster, ranks, options.allowed);
  TESSERA_REQUIRE(!space.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: no plan divides {} sequences a step among {} ranks: expected another number "
                  "of either",
                  placed(config, "train.global_batch"),
                  config.train.global_batch,
                  ranks);
  std::erase_if(space, [&](const PlanChoice& choice) { return !has_words(choice, options.words); });
  TESSERA_REQUIRE(!space.empty(),
                  ErrorCode::kInvalidConfig,
                  "--why=\"{}\": no plan of this space has all of these words: expected some of a "
                  "plan's, as in --why=\"t8 p1 fsdp\"",
                  options.words);
  const PlannedRuns runs(config, cluster, ranks);
  const SearchProblem problem = {
      .size = space.size(),
      .num_bounds = PlannedRuns::kNumBounds,
      .bound = [&](std::size_t plan, int number) { return runs.bound(space[plan], number); },
      .evaluate = [&](std::size_t plan) { return runs.evaluate(space[plan]); },
      .kind = [&](std::size_t plan) { return kind_of(space[plan]); },
      .first = first_plans(space, choice_of_file(config, cluster, ranks))};
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
                      .plans = ranked(space, result)};
  if (found.plans.empty() && !found.ran_out) {
    refuse_all(space, result, runs);
  }
  TESSERA_REQUIRE(!found.plans.empty(),
                  ErrorCode::kInvalidConfig,
                  "no plan was simulated in {:g} s: expected more time (--seconds)",
                  options.search.seconds);
  try {
    found.own = runs.evaluate_own(ranks);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidConfig && error.code() != ErrorCode::kUnsupported) {
      throw;
    }
    found.own_problem = error.what();
  }
  found.took = seconds_since(start);
  return found;
}

}  // namespace tessera
