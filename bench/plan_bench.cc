// What the planner finds on drawn clusters, beside what all plans of the space have, as many plans
// drawn at random, plain fsdp, and a rule of thumb.
//
// usage: plan_bench [RUNS [RANKS]]

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/base/random.h"
#include "tessera/planner/find_plans.h"
#include "tessera/planner/planned_runs.h"
#include "tessera/planner/test_drawn_run.h"

namespace tessera {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

double seconds_of(const PlannedRuns& runs, const PlanChoice& choice) {
  const PlanOutcome outcome = runs.evaluate(choice);
  return outcome.is_refused || !outcome.fits ? kNone : outcome.seconds;
}

// The fastest of so many plans drawn at random.
double drawn(const PlannedRuns& runs,
             const std::vector<PlanChoice>& space,
             std::int64_t count,
             std::uint64_t seed) {
  const std::uint64_t key = random_key(seed, "random search");
  double best = kNone;
  for (std::int64_t i = 0; i < count; ++i) {
    const double place = uniform(key, static_cast<std::uint64_t>(i));
    const auto plan = static_cast<std::size_t>(place * static_cast<double>(space.size()));
    best = std::min(best, seconds_of(runs, space[plan]));
  }
  return best;
}

// The fastest that fits of those plans, by microbatch and recompute.
template <class Is>
double best_where(const PlannedRuns& runs, const std::vector<PlanChoice>& space, const Is& is) {
  double best = kNone;
  for (const PlanChoice& choice : space) {
    best = is(choice) ? std::min(best, seconds_of(runs, choice)) : best;
  }
  return best;
}

bool is_fsdp(const PlanChoice& choice) {
  return choice.tensor == 1 && choice.pipeline == 1 && choice.state.preset == "fsdp";
}

struct Totals {
  int runs = 0;
  int near = 0;       // within 1 % of the fastest
  int too_large = 0;  // proposed plans that do not fit
  int bad_gap = 0;    // printed gaps below the true one
  double random = 0.0;
  int no_random = 0;
  double fsdp = 0.0;
  int no_fsdp = 0;
  double thumb = 0.0;
  int no_thumb = 0;
};

void add(double& sum, int& none, double seconds, double best) {
  if (seconds == kNone) {
    ++none;
  } else {
    sum += seconds / best;
  }
}

void run_one(std::uint64_t seed, std::int64_t ranks, Totals& totals) {
  const DrawnRun run(seed, ranks);
  const int threads = usable_cores();
  FoundPlans all;
  try {
    all = find_plans(run.config, run.cluster, {.search = {.threads = threads, .exhaustive = true}});
  } catch (const Error&) {
    std::printf("%4d  nothing fits\n", static_cast<int>(seed));
    return;
  }
  const FoundPlans found =
      find_plans(run.config, run.cluster, {.search = {.seconds = 1e9, .threads = threads}});
  const double best = all.lower;
  const RankedPlan& proposed = found.plans.front();
  const double ratio = proposed.outcome.seconds / best;
  const PlannedRuns runs(run.config, run.cluster, ranks);
  const std::vector<PlanChoice> space = run.space();
  const std::int64_t inner = run.cluster.levels.front().size;
  const double random = drawn(runs, space, found.simulated, seed);
  const double fsdp = best_where(runs, space, is_fsdp);
  // Tensor ranks inside a node, 1f1b between nodes.
  const double thumb = best_where(runs, space, [&](const PlanChoice& choice) {
    return choice.tensor == std::min<std::int64_t>(inner, 2) &&
           (choice.pipeline == 1 || choice.schedule == "1f1b") && choice.state.preset == "zero1" &&
           choice.microbatch == 1;
  });
  ++totals.runs;
  totals.near += ratio <= 1.01 ? 1 : 0;
  totals.too_large += proposed.outcome.memory > proposed.outcome.limit ? 1 : 0;
  totals.bad_gap += found.gap() < ratio - 1.0 - 1e-9 ? 1 : 0;
  add(totals.random, totals.no_random, random, best);
  add(totals.fsdp, totals.no_fsdp, fsdp, best);
  add(totals.thumb, totals.no_thumb, thumb, best);
  std::printf("%4d %7lld %7lld %7lld   %6.3f %6.3f %6.3f %6.3f   %s\n",
              static_cast<int>(seed),
              static_cast<long long>(found.size),
              static_cast<long long>(found.too_large),
              static_cast<long long>(found.simulated),
              ratio,
              random / best,
              fsdp / best,
              thumb / best,
              all_words(proposed.choice).c_str());
}

int bench(int argc, char** argv) {
  const int runs = argc > 1 ? std::atoi(argv[1]) : 200;
  const std::int64_t ranks = argc > 2 ? std::atoi(argv[2]) : 8;
  std::printf("seconds over those of the fastest plan; inf: no such plan fits\n");
  std::printf("seed    plans   large  simul.  planner random   fsdp  thumb   proposed\n");
  Totals totals;
  for (int seed = 0; seed < runs; ++seed) {
    run_one(static_cast<std::uint64_t>(seed), ranks, totals);
    std::fflush(stdout);
  }
  std::printf(
      "%d runs: within 1 %% of the fastest in %d, over memory in %d, gap too small in %d\n"
      "mean of those that fit: random %.3f (none fits in %d), fsdp %.3f (%d), rule of thumb %.3f "
      "(%d)\n",
      totals.runs,
      totals.near,
      totals.too_large,
      totals.bad_gap,
      totals.random / std::max(1, totals.runs - totals.no_random),
      totals.no_random,
      totals.fsdp / std::max(1, totals.runs - totals.no_fsdp),
      totals.no_fsdp,
      totals.thumb / std::max(1, totals.runs - totals.no_thumb),
      totals.no_thumb);
  return totals.too_large + totals.bad_gap > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::bench(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plan_bench: %s\n", error.what());
    return 1;
  }
}
