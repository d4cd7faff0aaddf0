#include "tessera/planner/plan_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>

#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/config/config.h"
#include "tessera/resolve/compare_simulations.h"
#include "tessera/resolve/run_memory.h"
#include "tessera/resolve/simulated_run.h"
#include "tessera/resolve/simulation_report.h"

namespace tessera {
namespace {

using Object = nlohmann::ordered_json;

constexpr std::size_t kShown = 5;

double tokens_per_second(const FoundPlans& found, const PlanOutcome& outcome) {
  return static_cast<double>(found.tokens_per_step) / outcome.seconds;
}

// In hundredths of a per cent, and no smaller than it is.
std::string gap_text(double gap) {
  constexpr double kHundredths = 1e4;
  double hundredths = std::ceil(gap * kHundredths);
  // What is multiplied may be rounded down to a whole number.
  hundredths += hundredths / kHundredths < gap ? 1.0 : 0.0;
  return format("{:.2f} %", hundredths / 100.0);
}

// In four digits, and no larger than it is.
std::string bound_seconds(double seconds) {
  if (seconds <= 0.0) {
    return "0";
  }
  constexpr int kDigits = 4;
  const double unit = std::pow(10.0, std::floor(std::log10(seconds)) - kDigits + 1);
  double digits = std::floor(seconds / unit);
  std::string text = format("{:.4g}", digits * unit);
  while (std::stod(text) > seconds) {
    digits -= 1.0;
    text = format("{:.4g}", digits * unit);
  }
  return text;
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
  text = format("{}; {:.1f} s{}\n",
                text,
                found.took,
                found.ran_out ? ", which was all the time there was (--seconds)" : "");
  return text + (found.refusal.empty() ? "" : format("  not compiled: {}\n", found.refusal));
}

// A search takes what may move for something that stays: more plans fit than it looks at.
std::string moving_text(const RunConfig& config) {
  const MemorySection& memory = config.memory;
  const bool may_move = std::ranges::count(std::array{memory.offload_optimizer,
                                                      memory.offload_parameters,
                                                      memory.offload_activations},
                                           Offload::kAuto) > 0;
  return may_move
             ? "memory.offload_* = \"auto\" is \"off\" in this search; \"all\" would be searched "
               "with\n"
             : "";
}

std::string row_text(const FoundPlans& found, std::size_t number, const RankedPlan& plan) {
  return format("{:>3} {:>9.4g} {:>14} {:>22}  {:<16} {:<20} {:<18} {:<20} {}\n",
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
      "No plan of this space is faster than {} s by this model: plan 1 is within {} of the "
      "optimum.\n",
      bound_seconds(found.lower),
      gap_text(found.gap()));
}

std::string tie_text(const FoundPlans& found) {
  return found.tied == 1 ? ""
                         : format(
                               "plans 1 to {} are within 1 % of the fastest: plan 1 is first by "
                               "{}\n",
                               found.tied,
                               found.tied_by);
}

Object plan_json(const FoundPlans& found, const RunConfig& config, const RankedPlan& plan) {
  return {{"words", all_words(plan.choice)},
          {"step_seconds", plan.outcome.seconds},
          {"tokens_per_second", tokens_per_second(found, plan.outcome)},
          {"memory_bytes", plan.outcome.memory},
          {"memory_limit_bytes", plan.outcome.limit},
          {"changes_numbers", is_marked(plan.choice)},
          {"overrides", choice_overrides(config, plan.choice)}};
}

Object found_json(const FoundPlans& found, const RunConfig& config) {
  Object plans = Object::array();
  for (const RankedPlan& plan : found.plans) {
    plans.push_back(plan_json(found, config, plan));
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
          {"tied", found.tied},
          {"tied_by", found.tied_by},
          {"refusal", found.refusal},
          {"yours", own},
          {"plans", plans}};
}

// As tessera compare reads it.
SimulationSummary summary_of(const SimulatedRun& run, const std::string& name) {
  return parse_simulation(simulation_json(make_simulation_report(run, {}, false)), name);
}

std::string lost_seconds_text(const RunConfig& config,
                              const Cluster& cluster,
                              const PlanChoice& choice,
                              const PlanChoice& best) {
  constexpr std::size_t kRows = 12;
  const SimulatedRun run(with_choice(config, choice), cluster);
  const SimulatedRun best_run(with_choice(config, best), cluster);
  return differences_text(
      cause_differences(summary_of(best_run, "plan 1"), summary_of(run, "this plan")),
      {.what = "by cause", .a = "plan 1", .b = "this plan"},
      kRows);
}

std::string memory_beside_limit(const RunConfig& config,
                                const Cluster& cluster,
                                const RankedPlan& plan) {
  const SimulatedRun run(with_choice(without_limit(config), plan.choice), cluster);
  return format("{}  {:<12} {:>12}\n",
                memory_table(run.facts()->memory),
                "limit",
                format_bytes(plan.outcome.limit));
}

}  // namespace

std::string plans_text(const FoundPlans& found, const RunConfig& config, const Cluster& cluster) {
  std::string text = format("{} on {}, {}\n  constants: {}\n{}{}",
                            subject(config),
                            cluster.name,
                            format_plural(found.ranks, "rank"),
                            constants_text(cluster),
                            counts_text(found),
                            moving_text(config));
  text += format("    {:>9} {:>14} {:>22}  {:<16} {:<20} {:<18} {:<20} {}\n",
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
  return text + tie_text(found) + own_text(found) + bound_text(found);
}

std::string plans_json(const FoundPlans& found, const RunConfig& config, const Cluster& cluster) {
  Object json = {{"run", subject(config)},
                 {"cluster", cluster.name},
                 {"constants", constants_text(cluster)},
                 {"is_estimate", !cluster.device.curve.has_value()}};
  json.update(found_json(found, config));
  return json.dump(2) + "\n";
}

PlanSweepRow plan_sweep_row(const std::string& ranks,
                            const Cluster& cluster,
                            const PlannerOptions& options,
                            const std::function<RunConfig()>& config) {
  PlanSweepRow planned;
  planned.row = sweep_row(ranks, [&] {
    planned.config = config();
    planned.found = find_plans(planned.config, cluster, options);
    const PlanChoice& best = planned.found.plans.front().choice;
    const SimulatedRun run(with_choice(planned.config, best), cluster);
    SweepRow row = sweep_row(make_simulation_report(run, {}, false));
    row.more = format("  {:>9}  {}", gap_text(planned.found.gap()), all_words(best));
    return row;
  });
  // Causes of several lines follow the first.
  planned.row.problem = planned.row.problem.substr(0, planned.row.problem.find('\n'));
  return planned;
}

std::string plan_sweep_text(const Sweep& sweep, const std::vector<PlanSweepRow>& rows) {
  std::vector<SweepRow> table;
  std::ranges::transform(rows, std::back_inserter(table), &PlanSweepRow::row);
  return sweep_text(sweep, table, format("  {:>9}  {}", "within", "plan")) +
         "within: of the fastest plan, at most\n";
}

std::string plan_sweep_json(const Sweep& sweep, const std::vector<PlanSweepRow>& rows) {
  std::vector<SweepRow> table;
  std::ranges::transform(rows, std::back_inserter(table), &PlanSweepRow::row);
  Object json = Object::parse(sweep_json(sweep, table));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].row.problem.empty()) {
      json["rows"][i].update(found_json(rows[i].found, rows[i].config));
    }
  }
  return json.dump(2) + "\n";
}

std::string best_run_file(const FoundPlans& found,
                          const RunConfig& config,
                          const Cluster& cluster) {
  const RankedPlan& best = found.plans.front();
  RunConfig run = with_choice(config, best.choice);
  run.run.device = to_string(target_of(cluster).kind);
  return format(
      "# The fastest plan that `tessera plan` found on {} of {}: {}.\n"
      "# A step takes {:.4g} s by its model, {} of memory a rank; within {} of the fastest.\n"
      "{}",
      format_plural(found.ranks, "rank"),
      cluster.name,
      all_words(best.choice),
      best.outcome.seconds,
      format_bytes(best.outcome.memory),
      gap_text(found.gap()),
      to_toml(run));
}

std::string why_text(const FoundPlans& found,
                     const RunConfig& config,
                     const Cluster& cluster,
                     const PlannerOptions& options) {
  const RankedPlan& best = found.plans.front();
  std::string text = format("\nwhy not \"{}\"\n", options.why);
  if (has_words(best.choice, options.why)) {
    return text + "  plan 1 has these words\n";
  }
  PlannerOptions narrow = options;
  narrow.words = options.why;
  const FoundPlans named = find_plans_or_least(config, cluster, narrow);
  if (named.least) {
    return text +
           format("  {}: needs {}: does not fit, and no other plan with these words does\n",
                  all_words(named.least->choice),
                  memory_text(named.least->outcome)) +
           memory_beside_limit(config, cluster, *named.least);
  }
  const RankedPlan& plan = *std::ranges::min_element(
      named.plans, {}, [](const RankedPlan& each) { return each.outcome.seconds; });
  text += format("  {}: {:.4g} s, {:+.1f} % of plan 1; {}\n",
                 all_words(plan.choice),
                 plan.outcome.seconds,
                 100.0 * (plan.outcome.seconds / best.outcome.seconds - 1.0),
                 memory_text(plan.outcome));
  return text + lost_seconds_text(config, cluster, plan.choice, best.choice);
}

}  // namespace tessera
