#include "tessera/planner/plan_report.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/config/config.h"
#include "tessera/resolve/simulated_run.h"
#include "tessera/resolve/simulation_report.h"

namespace tessera {
namespace {

using Object = nlohmann::ordered_json;

constexpr std::size_t kShown = 5;

double tokens_per_second(const FoundPlans& found, const PlanOutcome& outcome) {
  return static_cast<double>(found.tokens_per_step) / outcome.seconds;
}

std::string memory_text(const PlanOutcome& outcome) {
  return outcome.limit > 0
             ? format("{} of {}", format_bytes(outcome.memory), format_bytes(outcome.limit))
             : format_bytes(outcome.memory);
}

std::string subject(const RunConfig& config) {
  const ModelSection& model = config.model;
  return format("{}{}{}", model.name, model.flavor.empty() ? "" : " ", model.flavor);
}

std::string counts_text(const FoundPlans& found) {
  std::string text = format("{} of this space; {} do not fit, {} cut by a bound, {} simulated",
                            format_plural(found.size, "plan"),
                            format_grouped(found.too_large),
                            format_grouped(found.cut),
                            format_grouped(found.simulated));
  if (found.open > 0) {
    text += format(", {} not looked at to the end", format_grouped(found.open));
  }
  if (found.refused > 0) {
    text += format(", {} cannot be compiled", format_grouped(found.refused));
  }
  return format("{}; {:.1f} s{}\n",
                text,
                found.took,
                found.ran_out ? ", which was all the time there was (--seconds)" : "");
}

std::string row_text(const FoundPlans& found, std::size_t number, const RankedPlan& plan) {
  return format("{:>3} {:>9.4g} {:>14} {:>22}  {:<16} {:<20} {:<18} {:<10} {}\n",
                number,
                plan.outcome.seconds,
                format_grouped(static_cast<std::int64_t>(tokens_per_second(found, plan.outcome))),
                memory_text(plan.outcome),
                mesh_words(plan.choice),
                state_words(plan.choice),
                schedule_words(plan.choice),
                recompute_words(plan.choice),
                plan.choice.microbatch);
}

std::string own_text(const FoundPlans& found) {
  if (!found.own) {
    return format("yours: no such run: {}\n", found.own_problem);
  }
  if (!found.own->fits) {
    return format("yours: needs {}: does not fit\n", memory_text(*found.own));
  }
  const double times = found.own->seconds / found.plans.front().outcome.seconds;
  return format("yours: {:.4g} s, {:.1f} % {} than plan 1; {}\n",
                found.own->seconds,
                100.0 * std::abs(times - 1.0),
                times >= 1.0 ? "slower" : "faster",
                memory_text(*found.own));
}

std::string bound_text(const FoundPlans& found) {
  return format(
      "No plan of this space is faster than {:.4g} s by this model: plan 1 is within {:.2f} % of "
      "the "
      "optimum.\n",
      found.lower,
      100.0 * found.gap());
}

Object plan_json(const FoundPlans& found, const RankedPlan& plan) {
  return {{"words", all_words(plan.choice)},
          {"step_seconds", plan.outcome.seconds},
          {"tokens_per_second", tokens_per_second(found, plan.outcome)},
          {"memory_bytes", plan.outcome.memory},
          {"memory_limit_bytes", plan.outcome.limit},
          {"changes_numbers", is_marked(plan.choice)},
          {"overrides", choice_overrides(plan.choice)}};
}

Object found_json(const FoundPlans& found) {
  Object plans = Object::array();
  for (const RankedPlan& plan : found.plans) {
    plans.push_back(plan_json(found, plan));
  }
  Object own;
  if (found.own && found.own->fits) {
    own = {{"step_seconds", found.own->seconds}, {"memory_bytes", found.own->memory}};
  } else if (found.own) {
    own = {{"step_seconds", Object()}, {"memory_bytes", found.own->memory}};
  } else {
    own = {{"problem", found.own_problem}};
  }
  return {{"ranks", found.ranks},
          {"space", found.size},
          {"refused", found.refused},
          {"too_large", found.too_large},
          {"cut", found.cut},
          {"open", found.open},
          {"simulated", found.simulated},
          {"ran_out", found.ran_out},
          {"lower_seconds", found.lower},
          {"gap", found.gap()},
          {"yours", own},
          {"plans", plans}};
}

// What the ranks that end last do, in seconds, by cause.
std::map<std::string, double> seconds_by_cause(const SimulationReport& report) {
  std::map<std::string, double> seconds;
  for (const CauseRow& row : report.causes[report.critical()].rows) {
    std::string what(name(row.cause));
    if (row.cause == Cause::kCollective) {
      const MeshAxis& axis = report.run.mesh().axes[row.where];
      what += format(" of {} on {}", to_string(axis.group), axis.level);
    }
    seconds[what] += to_seconds(row.ticks);
  }
  return seconds;
}

std::string causes_text(const SimulationReport& plan, const SimulationReport& best) {
  const auto own = seconds_by_cause(plan);
  const auto theirs = seconds_by_cause(best);
  std::map<std::string, double> more = own;
  for (const auto& [what, seconds] : theirs) {
    more[what] -= seconds;
  }
  std::vector<std::pair<std::string, double>> rows(more.begin(), more.end());
  std::ranges::stable_sort(rows, std::greater<>(), &std::pair<std::string, double>::second);
  const auto of = [](const std::map<std::string, double>& seconds, const std::string& what) {
    const auto found = seconds.find(what);
    return found == seconds.end() ? 0.0 : found->second;
  };
  std::string text =
      format("  {:<40} {:>10} {:>10} {:>11}\n", "seconds", "this plan", "plan 1", "");
  for (const auto& [what, seconds] : rows) {
    text += format("  {:<40} {:>10.4g} {:>10.4g} {:>+11.4g}\n",
                   what,
                   of(own, what),
                   of(theirs, what),
                   seconds);
  }
  return text + format("  {:<40} {:>10.4g} {:>10.4g} {:>+11.4g}\n",
                       "step",
                       plan.seconds(),
                       best.seconds(),
                       plan.seconds() - best.seconds());
}

}  // namespace

std::string plans_text(const FoundPlans& found, const RunConfig& config, const Cluster& cluster) {
  std::string text = format("{} on {}, {}\n  constants: {}\n{}",
                            subject(config),
                            cluster.name,
                            format_plural(found.ranks, "rank"),
                            constants_text(cluster),
                            counts_text(found));
  text += format("    {:>9} {:>14} {:>22}  {:<16} {:<20} {:<18} {:<10} {}\n",
                 "step s",
                 "tokens/s",
                 "memory",
                 "mesh",
                 "state",
                 "schedule",
                 "recompute",
                 "microbatch");
  bool has_marks = false;
  for (std::size_t i = 0; i < std::min(kShown, found.plans.size()); ++i) {
    text += row_text(found, i + 1, found.plans[i]);
    has_marks = has_marks || is_marked(found.plans[i].choice);
  }
  if (has_marks) {
    text += "! changes numbers, by a format that the run file has not and --allow opens\n";
  }
  return text + own_text(found) + bound_text(found);
}

std::string plans_json(const FoundPlans& found, const RunConfig& config, const Cluster& cluster) {
  Object json = {{"run", subject(config)},
                 {"cluster", cluster.name},
                 {"constants", constants_text(cluster)},
                 {"is_estimate", !cluster.device.curve.has_value()}};
  json.update(found_json(found));
  return json.dump(2) + "\n";
}

std::string plan_sweep_text(const std::vector<PlanSweepRow>& rows, const Cluster& cluster) {
  std::string text = format("{:<10} {:>9} {:>14} {:>11} {:>12} {:>8}  {}\n",
                            "ranks",
                            "step s",
                            "tokens/s",
                            "efficiency",
                            "memory",
                            "within",
                            "plan");
  std::optional<double> first;  // tokens/s of a rank
  for (const PlanSweepRow& row : rows) {
    if (!row.problem.empty()) {
      text += format("{:<10} {}\n", row.ranks, row.problem);
      continue;
    }
    const RankedPlan& best = row.found.plans.front();
    const double speed = tokens_per_second(row.found, best.outcome);
    const double of_rank = speed / static_cast<double>(row.found.ranks);
    first = first.value_or(of_rank);
    text += format("{:<10} {:>9.4g} {:>14} {:>9.1f} % {:>12} {:>6.2f} %  {}\n",
                   row.ranks,
                   best.outcome.seconds,
                   format_grouped(static_cast<std::int64_t>(speed)),
                   100.0 * of_rank / *first,
                   format_bytes(best.outcome.memory),
                   100.0 * row.found.gap(),
                   all_words(best.choice));
  }
  return text +
         format("within: of the fastest plan, at most\nconstants: {}\n", constants_text(cluster));
}

std::string plan_sweep_json(const std::vector<PlanSweepRow>& rows, const Cluster& cluster) {
  Object list = Object::array();
  for (const PlanSweepRow& row : rows) {
    if (row.problem.empty()) {
      list.push_back(found_json(row.found));
    } else {
      list.push_back({{"value", row.ranks}, {"problem", row.problem}});
    }
  }
  return Object{{"key", "parallel.ranks"}, {"constants", constants_text(cluster)}, {"rows", list}}
             .dump(2) +
         "\n";
}

std::string best_run_file(const FoundPlans& found,
                          const RunConfig& config,
                          const Cluster& cluster) {
  const RankedPlan& best = found.plans.front();
  RunConfig run = with_choice(config, best.choice);
  run.run.device = to_string(target_of(cluster).kind);
  return format(
      "# The fastest plan that `tessera plan` found on {} of {}: {}.\n"
      "# A step takes {:.4g} s by its model, {} of memory a rank; within {:.2f} % of the fastest.\n"
      "{}",
      format_plural(found.ranks, "rank"),
      cluster.name,
      all_words(best.choice),
      best.outcome.seconds,
      format_bytes(best.outcome.memory),
      100.0 * found.gap(),
      to_toml(run));
}

std::string why_text(const FoundPlans& found,
                     const RunConfig& config,
                     const Cluster& cluster,
                     const PlannerOptions& options,
                     std::string_view words) {
  PlannerOptions narrow = options;
  narrow.words = words;
  const RankedPlan& best = found.plans.front();
  std::optional<FoundPlans> named;
  std::string text = format("\nwhy not \"{}\"\n", words);
  try {
    named = find_plans(config, cluster, narrow);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) {
      throw;
    }
    return text + format("  {}\n", error.message());
  }
  const RankedPlan& plan = named->plans.front();
  if (plan.choice == best.choice) {
    return text + "  it is plan 1\n";
  }
  text += format("  {}: {:.4g} s, {:+.1f} % of plan 1; {}\n",
                 all_words(plan.choice),
                 plan.outcome.seconds,
                 100.0 * (plan.outcome.seconds / best.outcome.seconds - 1.0),
                 memory_text(plan.outcome));
  const SimulatedRun run(with_choice(config, plan.choice), cluster);
  const SimulatedRun best_run(with_choice(config, best.choice), cluster);
  return text + causes_text(make_simulation_report(run, {}, false),
                            make_simulation_report(best_run, {}, false));
}

}  // namespace tessera
