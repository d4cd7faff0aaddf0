#include "tessera/planner/planned_runs.h"

#include <algorithm>
#include <utility>

#include "tessera/actions/schedules.h"
#include "tessera/base/error.h"
#include "tessera/cost/collective_time.h"
#include "tessera/cost/constants.h"
#include "tessera/mesh/placement.h"
#include "tessera/plan/model_costs.h"
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
// than the simulator's, which rounds each to a picosecond, differ by less.
constexpr double kRounding = 1.0 - 1e-6;

// By how many bytes what a layer adds may differ from another's, for the arena's
// alignment.
constexpr std::int64_t kPadding = 4 * kArenaAlignment;

// One rank that does the gradients of weights apart.
PipelinePlan one_stage(std::int64_t microbatches, std::int64_t layers) {
  return {.table = make_table({.schedule = PipelineSchedule::kZbH1, .microbatches = microbatches}),
          .layers = {layers}};
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
                                                             ProbeOf of) const {
  const bool splits =
      of != ProbeOf::kTotals && choice.pipeline > 1 && schedule(choice)->splits_backward;
  PlanChoice probed = choice;
  probed.pipeline = 1;
  probed.schedule.clear();
  probed.chunks = 1;
  probed.num_microbatches = choice.num_microbatches == 1 ? 1 : kProbed;
  // Context ranks, which a probe keeps, have states in common as data ranks do.
  if (of != ProbeOf::kStates && choice.data > 1 && choice.context == 1) {
    probed.data = 1;
    probed.state = {};
    probed.overlap_layers = 1;
    // Other ranks may add up a part of the gradients.
    probed.num_microbatches = of == ProbeOf::kSums ? probed.num_microbatches : 1;
  }
  const bool once = config_.float8.keep_weight_codes && choice.num_microbatches > 1 &&
                    placement_of(choice).param == 1;
  const std::string key = format("{} m{}{}{}",
                                 all_words(probed),
                                 probed.num_microbatches,
                                 splits ? " split" : "",
                                 once ? " once" : "");
  return probes_.get(key, [&]() -> Probe {
    try {
      return make_probe(probed, splits, once, choice.num_ranks());
    } catch (const Error& error) {
      if (!is_refusal(error)) {
        throw;
      }
      return {.is_refused = true};
    }
  });
}

// Probes are of one stage. Where the last one keeps all, the others are as with "full".
PlannedRuns::StageProbes PlannedRuns::stage_probes(const PlanChoice& choice, ProbeOf of) const {
  if (choice.recompute != Recompute::kFullButLastStage) {
    const std::shared_ptr<const Probe> all = probe(choice, of);
    return {.others = all, .last = all};
  }
  PlanChoice others = choice;
  others.recompute = Recompute::kFull;
  PlanChoice last = choice;
  last.recompute = Recompute::kNone;
  return {.others = probe(others, of), .last = probe(last, of)};
}

PlannedRuns::Probe PlannedRuns::make_probe(const PlanChoice& choice,
                                           bool splits_backward,
                                           bool codes_once,
                                           std::int64_t ranks) const {
  RunConfig config = with_choice(config_, choice);
  config.train.global_batch = choice.data * choice.microbatch * choice.num_microbatches;
  config.validation.every = 0;
  Probe made = {.microbatches = choice.num_microbatches, .data = choice.data};
  LiveBytes live;
  const auto measure = [&](std::int64_t layers) {
    config.model.layers = layers;
    const RunConfig resolved = resolve(config, ConfigUse::kPlan);
    PlannedRun run = planned(resolved);
    if (splits_backward) {
      run.plan.pipeline = one_stage(choice.num_microbatches, layers);
    }
    const RunPrograms programs = compile_run(run.plan, run.target);
    TimedProgram program = timed(resolved, run, programs, ranks, cached_).front();
    if (codes_once) {
      leave_out_weight_codes(program);
    }
    made.parts = step_parts(program, spread(ranks));
    made.ahead = ahead_seconds(program, spread(ranks));
    made.ends = step_ends(program, spread(ranks));
    made.boundary = static_cast<double>(boundary_bytes(run.plan));
    const LiveBytes few = std::exchange(live, live_bytes(*program.program));
    made.bytes = layer_bytes(few, live);
    return step_sums(program, spread(ranks));
  };
  const StepSums few = measure(few_layers_);
  if (few_layers_ == num_layers_) {
    made.sums = few;
    made.alive = few.alive;
    made.bytes = {};
    return made;
  }
  const StepSums more = measure(few_layers_ + period_);
  const std::int64_t periods = (num_layers_ - few_layers_) / period_;
  const auto steps = static_cast<double>(periods);
  made.sums = combine(1.0 - steps, few, steps, more);
  made.alive = more.alive;
  const double part = 1.0 / static_cast<double>(period_);
  made.layer = combine(-part, few, part, more);
  return made;
}

// Of bound `number`.
PlannedRuns::ProbeOf PlannedRuns::probe_of(const PlanChoice& choice, int number) const {
  return number == 0                                     ? ProbeOf::kTotals
         : number > 1                                    ? ProbeOf::kStates
         : number == 1 && placement_of(choice).grad == 1 ? ProbeOf::kSums
                                                         : ProbeOf::kWork;
}

std::shared_ptr<const ScheduleFacts> PlannedRuns::schedule(const PlanChoice& choice) const {
  return schedules_.get(
      format("{} p{} v{} m{}",
             choice.schedule,
             choice.pipeline,
             choice.chunks,
             choice.num_microbatches),
      [&] {
        const ActionTable table = make_table({.schedule = parse_pipeline_schedule(choice.schedule),
                                              .ranks = choice.pipeline,
                                              .chunks = choice.chunks,
                                              .microbatches = choice.num_microbatches,
                                              .slices = config_.pipeline.slices});
        ScheduleFacts facts = {.order = run_order(table), .rank_of_stage = table.rank_of_stage};
        facts.splits_backward = std::ranges::any_of(facts.order, [](const OrderedAction& action) {
          return action.kind == ActionKind::kWeightGradient;
        });
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
  const StageProbes probes = stage_probes(choice, probe_of(choice, number));
  if (probes.is_refused()) {
    return {.is_refused = true};
  }
  PlanBound bound;
  double bytes = 0.0;
  if (choice.pipeline == 1) {
    bound.seconds = single_seconds(choice, *probes.last);
    bytes = single_memory(choice, *probes.last);
  } else {
    const StageProbes held = number > 0 ? stage_probes(choice, ProbeOf::kSums) : probes;
    bound.seconds = pipeline_seconds(choice, probes, number > 0);
    bytes = held.is_refused() ? 0.0 : pipeline_memory(choice, held, number > 0);
  }
  bound.seconds *= kRounding;
  bound.memory = std::max<std::int64_t>(
      0, static_cast<std::int64_t>(bytes * kRounding) - num_layers_ * kPadding);
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
  return target_.arena_limit(nccl_reserve_bytes(
      layout, config_.comm.overlap, choice.pipeline > 1 ? least_channels(choice) : 0));
}

Mesh PlannedRuns::mesh_of(const PlanChoice& choice) const {
  return make_mesh(cluster_, choice.degrees());
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
  const StreamSeconds work =
      probe.microbatches > 1
          ? all_microbatches(sums, choice.num_microbatches)
          : combine(static_cast<double>(choice.num_microbatches), sums.microbatches[0], 0.0, {});
  return combine(1.0, work, update_share(choice, probe), sums.update);
}

double PlannedRuns::single_seconds(const PlanChoice& choice, const Probe& probe) const {
  return rank_seconds(all_of(choice, probe, probe.sums), probe.ends.before + probe.ends.after);
}

// Ranks apply their updates when all have done their work: those of a pipeline
// have one gradient norm.
double PlannedRuns::pipeline_seconds(const PlanChoice& choice,
                                     const StageProbes& probes,
                                     bool with_order) const {
  const std::vector<StageSeconds> stages = stage_seconds(choice, probes);
  double seconds = rank_bound(choice, probes, stages);
  if (with_order && config_.pipeline.slices == 1) {
    seconds = std::max(seconds, clock_bound(choice, *probes.others, stages));
  }
  return seconds + applied_seconds(choice, *probes.others);
}

// Of the rank that takes longest to apply its update.
double PlannedRuns::applied_seconds(const PlanChoice& choice, const Probe& probe) const {
  const StreamSeconds& layer = probe.layer.applied;
  const double seconds = probe.data == choice.data ? std::max(layer.main(), layer.beside)
                                                   : layer.main() * update_share(choice, probe);
  return std::ranges::max(layers_of_ranks(choice)) * seconds;
}

std::vector<StageSeconds> PlannedRuns::stage_seconds(const PlanChoice& choice,
                                                     const StageProbes& probes) const {
  std::vector<StageSeconds> stages;
  for (std::size_t stage = 0; stage < choice.layers.size(); ++stage) {
    const auto layers = static_cast<double>(choice.layers[stage]);
    const bool is_last = stage + 1 == choice.layers.size();
    const Probe& probe = probes.of(is_last);
    const StepSums& layer = probe.layer;
    const bool has_states = probe.data == choice.data;
    const double reduced =
        probe.microbatches > 1
            ? std::max(0.0, layer.microbatches[2].beside - layer.microbatches[1].beside)
            : 0.0;
    const auto call = [&](double PartSeconds::* part, std::size_t microbatch) {
      const StepParts& parts = probe.part(microbatch);
      return layers * parts.layer.*part + (stage == 0 ? parts.embedding.*part : 0.0) +
             (is_last ? parts.head.*part : 0.0);
    };
    const auto calls = [&](double PartSeconds::* part) -> CallSeconds {
      return {.first = call(part, 0), .between = call(part, 1), .last = call(part, 2)};
    };
    const auto beside = [&](double PartSeconds::* part) -> BesideSeconds {
      return {.gathers = layers * layer.gathers.*part,
              .reductions = layers * layer.reductions.*part};
    };
    stages.push_back({.layers = layers,
                      .forward = calls(&PartSeconds::forward),
                      .backward = calls(&PartSeconds::backward),
                      .weight = calls(&PartSeconds::weight),
                      .forward_ahead = layers > 0.0 ? probe.ahead.forward : kBoundless,
                      .backward_ahead = layers > 0.0 ? probe.ahead.backward : kBoundless,
                      .beside_forward = beside(&PartSeconds::forward),
                      .beside_backward = beside(&PartSeconds::backward),
                      .beside_weight = beside(&PartSeconds::weight),
                      .reduced = layers * reduced,
                      .left_after = stage == 0 && has_states ? probe.ends.after : 0.0});
  }
  return stages;
}

// The rank that is busy longest, with what it waits for before its first and
// after its last work.
double PlannedRuns::rank_bound(const PlanChoice& choice,
                               const StageProbes& probes,
                               const std::vector<StageSeconds>& stages) const {
  const std::shared_ptr<const ScheduleFacts> facts = schedule(choice);
  const auto of_calls = [&](const Probe& probe, PartSeconds StepParts::* end) {
    double seconds = 0.0;
    for (double PartSeconds::* const part :
         {&PartSeconds::forward, &PartSeconds::backward, &PartSeconds::weight}) {
      seconds += CallSeconds{.first = probe.part(0).*end.*part,
                             .between = probe.part(1).*end.*part,
                             .last = probe.part(2).*end.*part}
                     .all(choice.num_microbatches);
    }
    return seconds;
  };
  const auto layer_of = [&](const Probe& probe) {
    return combine(
        1.0, all_of(choice, probe, probe.layer), -update_share(choice, probe), probe.layer.applied);
  };
  const StreamSeconds layer = layer_of(*probes.others);
  const StreamSeconds last_layer = layer_of(*probes.last);
  const auto ranks = static_cast<std::size_t>(choice.pipeline);
  std::vector<StreamSeconds> works(ranks);
  std::vector<double> idle(ranks, 0.0);
  double before = 0.0;  // of a microbatch in the stages before
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const auto rank = static_cast<std::size_t>(facts->rank_of_stage[stage]);
    const bool is_last = stage + 1 == stages.size();
    works[rank] = combine(1.0, works[rank], stages[stage].layers, is_last ? last_layer : layer);
    works[rank].computing += stage == 0 ? of_calls(probes.of(is_last), &StepParts::embedding) : 0.0;
    works[rank].computing += is_last ? of_calls(*probes.last, &StepParts::head) : 0.0;
    idle[rank] = stage < ranks && config_.pipeline.slices == 1 ? before : idle[rank];
    const CallSeconds& forward = stages[stage].forward;
    const CallSeconds& backward = stages[stage].backward;
    before += std::max(0.0, forward.first - stages[stage].forward_ahead);
    before += facts->splits_backward
                  ? 0.0
                  : std::max(0.0,
                             std::min({backward.first, backward.between, backward.last}) -
                                 stages[stage].backward_ahead);
  }
  double seconds = 0.0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    seconds = std::max(seconds, rank_seconds(works[rank], idle[rank]));
  }
  return seconds;
}

// Of the order of all actions.
double PlannedRuns::clock_bound(const PlanChoice& choice,
                                const Probe& probe,
                                const std::vector<StageSeconds>& stages) const {
  const bool has_states = probe.data == choice.data;
  const PipelineEnds ends = pipeline_ends(schedule(choice)->order,
                                          stages,
                                          {.calls = choice.num_microbatches,
                                           .hop = hop_seconds(choice, probe),
                                           .first_wait = has_states ? probe.ends.before : 0.0,
                                           .overlap_layers = choice.overlap_layers});
  const std::vector<double> layers = layers_of_ranks(choice);
  const double norm = update_share(choice, probe) *
                      std::max(0.0, probe.layer.update.main() - probe.layer.applied.main());
  double seconds = 0.0;
  for (std::size_t rank = 0; rank < layers.size(); ++rank) {
    seconds = std::max({seconds, ends.work[rank] + layers[rank] * norm, ends.reduced[rank]});
  }
  return seconds;
}

// From the end of an action to what waits for it on another rank.
double PlannedRuns::hop_seconds(const PlanChoice& choice, const Probe& probe) const {
  const LegWork sent = {
      .axis = "", .kind = CollectiveKind::kSend, .bytes = probe.boundary, .sent = probe.boundary};
  double least = kBoundless;
  for (const MeshAxis& axis : mesh_of(choice).axes) {
    const auto level = std::ranges::find(cluster_.levels, axis.level, &Level::name);
    if (axis.group == AxisGroup::kPipeline && level != cluster_.levels.end()) {
      const LegTime time = leg_time(*level, sent, CollectiveStyle::kOwn);
      least = std::min(least, time.latency + time.moving);
    }
  }
  return least < kBoundless ? least : 0.0;
}

std::vector<double> PlannedRuns::layers_of_ranks(const PlanChoice& choice) const {
  const std::shared_ptr<const ScheduleFacts> facts = schedule(choice);
  std::vector<double> layers(static_cast<std::size_t>(choice.pipeline), 0.0);
  for (std::size_t stage = 0; stage < choice.layers.size(); ++stage) {
    layers[static_cast<std::size_t>(facts->rank_of_stage[stage])] +=
        static_cast<double>(choice.layers[stage]);
  }
  return layers;
}

// Of the rank that has most: one for each direction between a stage of its own and
// the next one of another rank.
std::int64_t PlannedRuns::least_channels(const PlanChoice& choice) const {
  const std::shared_ptr<const ScheduleFacts> facts = schedule(choice);
  std::vector<std::int64_t> channels(static_cast<std::size_t>(choice.pipeline), 0);
  for (std::size_t stage = 0; stage + 1 < facts->rank_of_stage.size(); ++stage) {
    const std::int64_t from = facts->rank_of_stage[stage];
    const std::int64_t to = facts->rank_of_stage[stage + 1];
    if (from != to) {
      channels[static_cast<std::size_t>(from)] += 2;
      channels[static_cast<std::size_t>(to)] += 2;
    }
  }
  return std::ranges::max(channels);
}

Placement PlannedRuns::placement_of(const PlanChoice& choice) const {
  if (choice.state.degrees || choice.state_ranks() == 1) {
    return choice.state.degrees.value_or(Placement());
  }
  return preset(choice.state.preset, mesh_of(choice)).placement;
}

// What a rank does of the update that the probe has.
double PlannedRuns::update_share(const PlanChoice& choice, const Probe& probe) const {
  return probe.data == choice.data ? 1.0
                                   : 1.0 / static_cast<double>(placement_of(choice).optimizer);
}

PlanOutcome PlannedRuns::evaluate(const PlanChoice& choice) const {
  try {
    return evaluate_config(resolved(choice));
  } catch (const Error& error) {
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

// What cannot be written down does not fit.
PlanOutcome PlannedRuns::evaluate_config(const RunConfig& config) const {
  try {
    return simulated(config);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) {
      throw;
    }
    return {.fits = false, .limit = limit_};
  }
}

PlanOutcome PlannedRuns::simulated(const RunConfig& config) const {
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
