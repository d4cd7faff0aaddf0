#include "tessera/planner/planned_runs.h"

#include <algorithm>
#include <utility>

#include "tessera/actions/schedules.h"
#include "tessera/actions/timeline.h"
#include "tessera/base/error.h"
#include "tessera/cost/constants.h"
#include "tessera/mesh/placement.h"
#include "tessera/plan/run_layout.h"
#include "tessera/planner/space.h"
#include "tessera/resolve/explanation.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/simulated_run.h"
#include "tessera/simulate/simulate.h"

namespace tessera {
namespace {

// Microbatches that tell the first, the last and one between them.
constexpr std::int64_t kProbed = 3;

constexpr double kBoundless = 1e30;  // bytes

// What of a bound's seconds and bytes counts: sums of a step in another order
// than the simulator's differ by less.
constexpr double kRounding = 1.0 - 1e-9;

double whole(const PartSeconds& part) {
  return part.forward + part.backward;
}

// Where a stage of a named schedule is.
std::int64_t rank_of(const PlanChoice& choice, std::int64_t stage) {
  const bool is_v = choice.schedule == "zb-v" || choice.schedule == "dualpipe-v";
  return is_v && stage >= choice.pipeline ? 2 * choice.pipeline - 1 - stage
                                          : stage % choice.pipeline;
}

bool splits_backward(const PlanChoice& choice) {
  return choice.schedule != "gpipe" && choice.schedule != "1f1b" &&
         choice.schedule != "interleaved" && choice.schedule != "looped-bfs";
}

std::vector<ActionCosts> action_costs(const StepParts& parts,
                                      const std::vector<std::int64_t>& layers) {
  std::vector<ActionCosts> costs;
  for (std::size_t stage = 0; stage < layers.size(); ++stage) {
    const auto count = static_cast<double>(layers[stage]);
    ActionCosts cost = {.forward = count * parts.layer.forward,
                        .input_gradient = count * parts.layer.backward,
                        .weight_gradient = 0.0};
    const auto add = [&](const PartSeconds& part) {
      cost.forward += part.forward;
      cost.input_gradient += part.backward;
    };
    if (stage == 0) {
      add(parts.embedding);
    }
    if (stage + 1 == layers.size()) {
      add(parts.head);
    }
    costs.push_back(cost);
  }
  return costs;
}

// Of the rank that has most: one for each direction between a stage of its own and the next one of
// another rank.
std::int64_t least_channels(const PlanChoice& choice) {
  std::vector<std::int64_t> channels(static_cast<std::size_t>(choice.pipeline), 0);
  for (std::int64_t stage = 0; stage + 1 < std::ssize(choice.layers); ++stage) {
    const std::int64_t from = rank_of(choice, stage);
    const std::int64_t to = rank_of(choice, stage + 1);
    if (from != to) {
      channels[static_cast<std::size_t>(from)] += 2;
      channels[static_cast<std::size_t>(to)] += 2;
    }
  }
  return std::ranges::max(channels);
}

bool is_refusal(const Error& error) {
  return error.code() == ErrorCode::kInvalidConfig || error.code() == ErrorCode::kInvalidArgument ||
         error.code() == ErrorCode::kUnsupported;
}

}  // namespace

PlannedRuns::PlannedRuns(RunConfig config, const Cluster& cluster, std::int64_t ranks)
    : config_(std::move(config)), cluster_(cluster), cached_(cluster), target_(target_of(cluster)) {
  if (cached_.host.cache_bytes > 0.0) {
    cached_.host.cache_bytes = kBoundless;
  }
  config_.run.device = to_string(target_.kind);
  config_.passes.dump.clear();
  const RunConfig whole = filled_in(config_, cluster, ranks);
  num_layers_ = resolve_model(whole).num_layers;
  period_ = std::max<std::int64_t>(1, whole.model.global_every.value_or(1));
  few_layers_ = std::max<std::int64_t>(2, period_);
  // Where the first or last layers differ, and where there are few, all are
  // measured.
  const bool is_even = whole.float8.skip_first == 0 && whole.float8.skip_last == 0;
  if (!is_even || few_layers_ + period_ > num_layers_) {
    few_layers_ = num_layers_;
  }
  limit_ = whole.memory.limit_bytes > 0      ? whole.memory.limit_bytes
           : target_.device.memory_bytes > 0 ? target_.arena_limit(0)
                                             : cluster.device.memory_bytes;
  comm_share_ = cluster.device.curve.value_or(kUsualCurve).comm_share;
}

RunConfig PlannedRuns::resolved(const PlanChoice& choice) const {
  return resolve(with_choice(config_, choice), ConfigUse::kPlan);
}

PlannedRun PlannedRuns::planned(const RunConfig& config) const {
  return plan_run(config, resolve_model(config), target_);
}

double PlannedRuns::spread(std::int64_t ranks) const {
  return 1.0 + cluster_.spread * standard_maximum(ranks);
}

std::int64_t PlannedRuns::threads(const RunConfig& config,
                                  const PlannedRun& run,
                                  std::int64_t ranks) const {
  return config.origins.places.contains("run.threads")
             ? run.plan.threads
             : std::max<std::int64_t>(1, cluster_.host.cores / ranks);
}

std::vector<TimedProgram> PlannedRuns::timed(const RunConfig& config,
                                             const PlannedRun& run,
                                             const RunPrograms& programs,
                                             std::int64_t ranks,
                                             const Cluster& cluster) const {
  const CollectiveStyle style = config.comm.reduction == Reduction::kNative
                                    ? CollectiveStyle::kNative
                                    : CollectiveStyle::kOwn;
  std::vector<TimedProgram> list;
  for (const Programs& own : programs) {
    list.push_back(
        time_program(own.step, run.plan.layout.mesh, cluster, style, threads(config, run, ranks)));
  }
  return list;
}

std::shared_ptr<const PlannedRuns::Probe> PlannedRuns::probe(const PlanChoice& choice,
                                                             bool has_states) const {
  PlanChoice probed = choice;
  probed.pipeline = 1;
  probed.schedule.clear();
  probed.chunks = 1;
  probed.num_microbatches = choice.num_microbatches == 1 ? 1 : kProbed;
  if (!has_states && choice.data > 1) {
    // Without gradients that are added up, which other ranks may do with a part
    // of them.
    probed.num_microbatches = 1;
    probed.data = 1;
    probed.state = {};
  }
  const std::string key = format("{} m{}", all_words(probed), probed.num_microbatches);
  return probes_.get(key, [&]() -> Probe {
    try {
      return make_probe(probed, choice.num_ranks());
    } catch (const Error& error) {
      if (!is_refusal(error)) {
        throw;
      }
      return {.is_refused = true};
    }
  });
}

PlannedRuns::Probe PlannedRuns::make_probe(const PlanChoice& choice, std::int64_t ranks) const {
  RunConfig config = with_choice(config_, choice);
  config.train.global_batch = choice.data * choice.microbatch * choice.num_microbatches;
  config.validation.every = 0;
  Probe made = {.microbatches = choice.num_microbatches, .data = choice.data};
  const auto measure = [&](std::int64_t layers) {
    config.model.layers = layers;
    const RunConfig resolved = resolve(config, ConfigUse::kPlan);
    const PlannedRun run = planned(resolved);
    const RunPrograms programs = compile_run(run.plan, run.target);
    const TimedProgram program = timed(resolved, run, programs, ranks, cached_).front();
    made.parts = step_parts(program, spread(ranks));
    made.ends = step_ends(program, spread(ranks));
    return step_sums(program, spread(ranks));
  };
  const StepSums few = measure(few_layers_);
  if (few_layers_ == num_layers_) {
    made.sums = few;
    return made;
  }
  const StepSums more = measure(few_layers_ + period_);
  const std::int64_t periods = (num_layers_ - few_layers_) / period_;
  const auto steps = static_cast<double>(periods);
  made.sums = combine(1.0 - steps, few, steps, more);
  const double part = 1.0 / static_cast<double>(period_);
  made.layer = combine(-part, few, part, more);
  return made;
}

std::shared_ptr<const ScheduleFacts> PlannedRuns::schedule(const PlanChoice& choice) const {
  return schedules_.get(
      format("{} p{} v{} m{}",
             choice.schedule,
             choice.pipeline,
             choice.chunks,
             choice.num_microbatches),
      [&] {
        ScheduleFacts facts = {.table =
                                   make_table({.schedule = parse_pipeline_schedule(choice.schedule),
                                               .ranks = choice.pipeline,
                                               .chunks = choice.chunks,
                                               .microbatches = choice.num_microbatches,
                                               .slices = config_.pipeline.slices})};
        facts.held = timeline(facts.table).held_by_rank;
        return facts;
      });
}

PlanBound PlannedRuns::bound(const PlanChoice& choice, int number) const {
  try {
    return bound_or_throw(choice, number);
  } catch (const Error& error) {
    if (!is_refusal(error)) {
      throw;
    }
    return {.is_refused = true};
  }
}

PlanBound PlannedRuns::bound_or_throw(const PlanChoice& choice, int number) const {
  const bool has_states = number > 1 && choice.data > 1;
  const std::shared_ptr<const Probe> probe = this->probe(choice, has_states);
  if (probe->is_refused) {
    return {.is_refused = true};
  }
  PlanBound bound;
  double bytes = 0.0;
  if (choice.pipeline == 1) {
    bound.seconds = single_seconds(choice, *probe);
    bytes = single_memory(choice, *probe);
  } else {
    bound.seconds = pipeline_seconds(choice, *probe, number > 0);
    bytes = pipeline_memory(choice, *probe, number > 0);
  }
  bound.seconds *= kRounding;
  bound.memory = static_cast<std::int64_t>(bytes * kRounding);
  bound.fits = limit_ == 0 || bound.memory <= most_memory(choice);
  return bound;
}

// What a rank may use at most: what a library takes for each group and channel is not there.
std::int64_t PlannedRuns::most_memory(const PlanChoice& choice) const {
  if (config_.memory.limit_bytes > 0 || target_.device.memory_bytes == 0 ||
      choice.num_ranks() == 1) {
    return limit_;
  }
  const RunLayout layout = {.mesh = mesh_of(choice)};
  return target_.arena_limit(
      nccl_reserve_bytes(layout, config_.comm.overlap, least_channels(choice)));
}

Mesh PlannedRuns::mesh_of(const PlanChoice& choice) const {
  return make_mesh(cluster_,
                   {.data = choice.data, .tensor = choice.tensor, .pipeline = choice.pipeline});
}

// Kernels and legs of stream 0 run one after the other, and so do all of the
// other stream's; while collectives of a library run beside, and stream 0
// computes, it does so more slowly. `idle`: seconds in which stream 0 has
// nothing to do.
double PlannedRuns::rank_seconds(const StreamSeconds& step, double idle) const {
  const double elsewhere = step.streaming + step.talking + idle;
  const double slowed = std::max(0.0, step.beside_native - elsewhere);
  return std::max(step.beside, step.computing + elsewhere + comm_share_ * slowed);
}

StreamSeconds PlannedRuns::all_of(const PlanChoice& choice,
                                  const Probe& probe,
                                  const StepSums& sums) const {
  const auto m = static_cast<double>(choice.num_microbatches);
  return probe.microbatches > 1
             ? whole_step(sums, choice.num_microbatches)
             : combine(m, sums.microbatches[0], update_share(choice, probe), sums.update);
}

double PlannedRuns::single_seconds(const PlanChoice& choice, const Probe& probe) const {
  return rank_seconds(all_of(choice, probe, probe.sums), probe.ends.before + probe.ends.after);
}

double PlannedRuns::pipeline_seconds(const PlanChoice& choice,
                                     const Probe& probe,
                                     bool with_table) const {
  const std::vector<ActionCosts> costs = action_costs(probe.parts, choice.layers);
  const bool is_whole = config_.pipeline.slices == 1;
  const bool is_joint = is_whole && !splits_backward(choice);
  const double update = update_share(choice, probe) * probe.layer.update.main();
  const StreamSeconds layer = all_of(choice, probe, probe.layer);
  const auto m = static_cast<double>(choice.num_microbatches);
  const auto ranks = static_cast<std::size_t>(choice.pipeline);
  std::vector<StreamSeconds> work(ranks);
  std::vector<double> idle(ranks,
                           0.0);  // least seconds before and after its own work
  std::vector<double> updates(ranks, 0.0);
  double before = 0.0;  // of a microbatch in the stages before
  for (std::size_t stage = 0; stage < costs.size(); ++stage) {
    const auto rank = static_cast<std::size_t>(rank_of(choice, static_cast<std::int64_t>(stage)));
    const auto layers = static_cast<double>(choice.layers[stage]);
    work[rank] = combine(1.0, work[rank], layers, layer);
    work[rank].computing += stage == 0 ? m * whole(probe.parts.embedding) : 0.0;
    work[rank].computing += stage + 1 == costs.size() ? m * whole(probe.parts.head) : 0.0;
    updates[rank] += layers * update;
    idle[rank] = stage < ranks && is_whole ? before : idle[rank];
    before += is_joint ? total(costs[stage]) : costs[stage].forward;
  }
  double seconds = 0.0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    // While the backwards before its own are done, a rank may begin its update.
    const double hidden = is_joint ? updates[rank] : 0.0;
    seconds = std::max(seconds, rank_seconds(work[rank], std::max(0.0, idle[rank] - hidden)));
  }
  if (with_table && is_joint) {
    seconds = std::max(
        seconds, timeline(schedule(choice)->table, costs).makespan + std::ranges::min(updates));
  }
  return seconds;
}

Placement PlannedRuns::placement_of(const PlanChoice& choice) const {
  if (choice.state.degrees || choice.data == 1) {
    return choice.state.degrees.value_or(Placement());
  }
  const Mesh mesh = make_mesh(
      cluster_, {.data = choice.data, .tensor = choice.tensor, .pipeline = choice.pipeline});
  return preset(choice.state.preset, mesh).placement;
}

// What a rank does of the update that the probe has.
double PlannedRuns::update_share(const PlanChoice& choice, const Probe& probe) const {
  return probe.data == choice.data ? 1.0
                                   : 1.0 / static_cast<double>(placement_of(choice).optimizer);
}

// Without padding, and without gradients where a step has one microbatch, which
// may not keep them.
double PlannedRuns::state_bytes_of(const PlanChoice& choice,
                                   double parameters,
                                   double trained) const {
  const Placement placement = placement_of(choice);
  const auto bytes = [&](double elements) {
    return state_bytes(placement,
                       {.elements = static_cast<std::int64_t>(elements),
                        .ranks = choice.data,
                        .compute = config_.train.dtype,
                        .moments = config_.optimizer.moments});
  };
  const StateBytes all = bytes(parameters);
  const StateBytes own = bytes(trained);
  const bool adds_up = choice.num_microbatches > 1 && config_.optimizer.gradients == DType::kF32;
  return static_cast<double>(all.param + all.secondary + own.optimizer + (adds_up ? own.grad : 0));
}

double PlannedRuns::single_memory(const PlanChoice& choice, const Probe& probe) const {
  const StepSums& sums = probe.sums;
  return std::max(state_bytes_of(choice, sums.parameters, sums.trained) + sums.activations,
                  probe.data == choice.data ? sums.persistent + sums.activations : 0.0);
}

// A rank keeps what its layers leave for backward of every microbatch in
// flight.
double PlannedRuns::pipeline_memory(const PlanChoice& choice,
                                    const Probe& probe,
                                    bool with_table) const {
  const auto ranks = static_cast<std::size_t>(choice.pipeline);
  std::vector<std::int64_t> layers(ranks, 0);
  std::vector<std::int64_t> fewest(ranks, num_layers_);
  for (std::size_t stage = 0; stage < choice.layers.size(); ++stage) {
    const auto rank = static_cast<std::size_t>(rank_of(choice, static_cast<std::int64_t>(stage)));
    layers[rank] += choice.layers[stage];
    fewest[rank] = std::min(fewest[rank], choice.layers[stage]);
  }
  const std::shared_ptr<const ScheduleFacts> facts = with_table ? schedule(choice) : nullptr;
  double most = 0.0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto count = static_cast<double>(layers[rank]);
    const double held = facts ? static_cast<double>(facts->held[rank].forwards) /
                                    static_cast<double>(config_.pipeline.slices)
                              : 1.0;
    const auto kept = static_cast<double>(fewest[rank]);
    most = std::max(
        most,
        state_bytes_of(choice, count * probe.layer.parameters, count * probe.layer.trained) +
            held * kept * probe.layer.activations);
  }
  return most;
}

PlanOutcome PlannedRuns::evaluate(const PlanChoice& choice) const {
  try {
    return evaluate_config(resolved(choice));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kOutOfMemory) {
      return {.fits = false, .limit = limit_};
    }
    if (!is_refusal(error)) {
      throw;
    }
    return {.is_refused = true};
  }
}

PlanOutcome PlannedRuns::evaluate_own(std::int64_t ranks) const {
  RunConfig config = config_;
  config.parallel.ranks = ranks;
  return evaluate_config(resolve(std::move(config), ConfigUse::kPlan));
}

PlanOutcome PlannedRuns::evaluate_config(const RunConfig& config) const {
  const PlannedRun run = planned(config);
  const RunPrograms programs = compile_plan(config, run);
  const MemoryFit fit = planned_memory(config, run, programs).fit;
  PlanOutcome outcome = {.memory = fit.needed, .limit = fit.limit};
  if (fit.of != MemoryFit::Limit::kNone && fit.needed > fit.limit) {
    outcome.fits = false;
    return outcome;
  }
  const Mesh& mesh = run.plan.layout.mesh;
  const std::vector<TimedProgram> list = timed(config, run, programs, mesh.num_ranks(), cluster_);
  std::vector<std::size_t> program_of;
  for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    program_of.push_back(static_cast<std::size_t>(pipeline_place(mesh, rank)));
  }
  outcome.seconds = to_seconds(
      simulate({.mesh = mesh, .cluster = cluster_, .programs = list, .program_of = program_of},
               {.spread = cluster_.spread, .threads = threads(config, run, mesh.num_ranks())})
          .step);
  return outcome;
}

}  // namespace tessera
