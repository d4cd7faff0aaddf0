#include "tessera/resolve/explanation.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "tessera/backend/devices.h"
#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/ops/all_ops.h"
#include "tessera/program/issue_order.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/resolve_layout.h"

namespace tessera {
namespace {

// What a collective of `instruction` is for.
TrafficPurpose purpose_of(const Instruction& instruction,
                          Action action,
                          const CollectiveUse& use,
                          const StateAxes& state) {
  // Transfers of a step are of a parameter that several pipeline ranks use.
  if (instruction.op->get_if<SendAttrs>() != nullptr && action == Action::kStart) {
    return TrafficPurpose::kParameters;
  }
  if (instruction.op->get_if<SendAttrs>() != nullptr && action == Action::kUpdate) {
    return TrafficPurpose::kGradients;
  }
  // All that it sends is of one class.
  for (const auto& [axis, bytes] : use.sent) {
    if (bytes.at(static_cast<std::size_t>(TrafficClass::kTensor)) > 0) {
      return TrafficPurpose::kActivations;
    }
    if (bytes.at(static_cast<std::size_t>(TrafficClass::kScalar)) > 0) {
      return TrafficPurpose::kScalars;
    }
  }
  if (instruction.op->get_if<GatherSlicesAttrs>() == nullptr) {
    return TrafficPurpose::kGradients;
  }
  // Masters are cut over more axes than parameters: what is gathered along those is updated.
  const auto first = std::ranges::find(state.axes, use.axes.front().name, &AxisSize::name);
  const bool beyond = std::cmp_greater_equal(first - state.axes.begin(), state.param);
  return action == Action::kUpdate && beyond ? TrafficPurpose::kUpdates
                                             : TrafficPurpose::kParameters;
}

std::vector<CollectiveRow> collective_rows(const Program& program, const StateAxes& state) {
  std::map<std::string, CollectiveRow> rows;
  for (std::size_t i = 0; i < program.segments.size(); ++i) {
    const Action action = program.segments[i].code.action;
    for (const Instruction& instruction : program.segments[i].instructions) {
      TensorTypes operands;
      for (const TensorRef& operand : instruction.operands) {
        operands.push_back(operand.type);
      }
      for (const CollectiveUse& use : collectives(*instruction.op, operands)) {
        if (use.axes.empty()) {
          continue;
        }
        CollectiveRow found{.action = std::string(name(action)),
                            .op = std::string(info(*instruction.op).name),
                            .kind = std::string(name(use.kind)),
                            .axes = to_string(use.axes),
                            .purpose = purpose_of(instruction, action, use, state)};
        CollectiveRow& row = rows.try_emplace(format("{} {} {} {} {}",
                                                     found.action,
                                                     found.op,
                                                     found.kind,
                                                     found.axes,
                                                     name(found.purpose)),
                                              found)
                                 .first->second;
        const std::int64_t count = use.count * program.num_runs(SegmentId::of(i), instruction);
        row.count += count;
        add(row.sent, use.sent, count);
      }
    }
  }
  std::vector<CollectiveRow> list;
  for (auto& [key, row] : rows) {
    list.push_back(std::move(row));
  }
  return list;
}

std::vector<LevelTraffic> level_rows(const std::vector<CollectiveRow>& collectives,
                                     const ResolvedLayout& resolved) {
  const RunLayout& layout = resolved.layout;
  std::vector<LevelTraffic> rows;
  for (const std::string& level : layout.mesh.levels) {
    rows.push_back({.level = level, .bandwidth = bandwidth_of(resolved.levels, level)});
  }
  for (const CollectiveRow& collective : collectives) {
    for (const auto& [level, bytes] : by_level(collective.sent, layout.mesh)) {
      const auto row = std::ranges::find(rows, level, &LevelTraffic::level);
      std::ranges::transform(row->bytes, bytes, row->bytes.begin(), std::plus<>());
      row->by_purpose.at(static_cast<std::size_t>(collective.purpose)) +=
          std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
    }
  }
  std::erase_if(rows, [](const LevelTraffic& row) { return row.total() == 0; });
  return rows;
}

// Whether a cluster file describes machines that need not be this one.
bool is_described(const RunConfig& config) {
  return !config.cluster.file.empty() && config.cluster.file != "local";
}

// What there is for a rank of a plan. Nobody runs more ranks on a machine than it has cores.
MemoryFit memory_fit(const RunConfig& config,
                     const PlannedRun& run,
                     const DeviceSpec& device,
                     const RunMemory& memory,
                     std::int64_t num_channels) {
  using Limit = MemoryFit::Limit;
  if (config.memory.limit_bytes > 0) {
    return {.needed = memory.total(), .of = Limit::kConfig, .limit = config.memory.limit_bytes};
  }
  if (run.target.device.memory_bytes > 0) {
    const bool talks = run.plan.layout.mesh.num_ranks() > 1;
    return {.needed = memory.total(),
            .of = Limit::kDevice,
            .limit = run.target.arena_limit(
                talks ? nccl_reserve_bytes(run.plan.layout, run.plan.passes.overlap, num_channels)
                      : 0)};
  }
  if (is_described(config)) {
    return {.needed = memory.total(),
            .of = device.memory_bytes > 0 ? Limit::kDevice : Limit::kNone,
            .limit = device.memory_bytes};
  }
  const bool is_elsewhere = run.target.is_device()
                                ? find_devices().usable.empty()
                                : !find_mpi_launch() && ranks_on_machine(config) > usable_cores();
  if (is_elsewhere) {
    return {.needed = memory.total()};
  }
  return {.needed = memory.total(),
          .of = Limit::kMachine,
          .limit = memory_limit(config, run.plan.layout, num_channels)};
}

Cost sum(const std::vector<CostRow>& rows) {
  Cost total;
  for (const CostRow& row : rows) {
    total.flop += row.cost.flop;
    total.bytes_read += row.cost.bytes_read;
    total.bytes_written += row.cost.bytes_written;
  }
  return total;
}

std::vector<View> views_of(const std::vector<TensorRef>& tensors) {
  std::vector<View> views;
  std::ranges::transform(tensors, std::back_inserter(views), view_of);
  return views;
}

template <class Attrs>
AttentionRuns attention_runs(const Program& program, const IssueOrder& order) {
  AttentionRuns runs;
  for (const IssueStep& step : order.steps) {
    const Instruction& instruction = instruction_of(program, step);
    const auto* const attrs = instruction.op->get_if<Attrs>();
    if (attrs != nullptr && step.works) {
      runs.all += 1;
      runs.own +=
          is_left_to_cudnn(*attrs, views_of(instruction.operands), views_of(instruction.results))
              ? 0
              : 1;
    }
  }
  return runs;
}

std::int64_t gathers_of_heads(const Program& program, const IssueOrder& order) {
  std::int64_t count = 0;
  for (const IssueStep& step : order.steps) {
    const Instruction& instruction = instruction_of(program, step);
    const auto* const gather = instruction.op->get_if<AllGatherAttrs>();
    if (gather == nullptr || !step.works) {
      continue;
    }
    const std::vector<Dim>& dims = instruction.operands[0].type.dims;
    const std::string& name = dims[static_cast<std::size_t>(gather->dim)].name;
    count += name == "heads" || name == "kv_heads" ? 1 : 0;
  }
  return count;
}

RankWork rank_work(const Program& step, const Target& target, const ResolvedLayout& resolved) {
  RankWork work;
  const IssueOrder order = issue_order(step);
  work.ops = cost_by_op(step);
  work.cost = sum(work.ops);
  if (target.kind == DeviceKind::kCuda) {
    work.attention = attention_runs<AttentionAttrs>(step, order);
    work.attention_backward = attention_runs<AttentionBackwardAttrs>(step, order);
  }
  work.gathered_heads = gathers_of_heads(step, order);
  work.collectives = collective_rows(step, state_axes(resolved.layout));
  work.levels = level_rows(work.collectives, resolved);
  return work;
}

}  // namespace

std::string_view name(TrafficPurpose purpose) {
  switch (purpose) {
    case TrafficPurpose::kParameters:
      return "parameters";
    case TrafficPurpose::kGradients:
      return "gradients";
    case TrafficPurpose::kUpdates:
      return "updates";
    case TrafficPurpose::kActivations:
      return "activations";
    case TrafficPurpose::kScalars:
      return "scalars";
  }
  return "?";
}

std::string_view name(MemoryFit::Limit limit) {
  switch (limit) {
    case MemoryFit::Limit::kNone:
      return "none";
    case MemoryFit::Limit::kConfig:
      return "memory.limit_bytes";
    case MemoryFit::Limit::kDevice:
      return "device";
    case MemoryFit::Limit::kMachine:
      return "machine";
  }
  return "?";
}

std::int64_t LevelTraffic::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

std::optional<double> LevelTraffic::seconds() const {
  return bandwidth > 0 ? std::optional(static_cast<double>(total()) / bandwidth) : std::nullopt;
}

std::int64_t Explanation::tokens_per_step() const {
  return config.train.global_batch * config.data.sequence_length;
}

double Explanation::flop_per_token() const {
  return training_flop_per_token(model(), counts, config.data.sequence_length);
}

RunPrograms compile_plan(const RunConfig& config, const PlannedRun& run) {
  require_inputs_fit(
      config,
      run.plan,
      config.memory.limit_bytes > 0 ? config.memory.limit_bytes : usable_memory_bytes());
  return compile_run(run.plan, run.target, config.passes.dump);
}

PlannedMemory planned_memory(const RunConfig& config,
                             const PlannedRun& run,
                             const RunPrograms& programs) {
  const DeviceSpec device =
      run.target.device.memory_bytes > 0 ? run.target.device : resolve_layout(config).device;
  // Of a device of the cluster, too: what checkpoints are written from lies on its host.
  const bool on_device =
      run.target.is_device() || (is_described(config) && device.memory_bytes > 0);
  PlannedMemory planned = {.memory = run_memory(run, programs, on_device), .fit = {}};
  planned.fit = memory_fit(config, run, device, planned.memory, most_channels(programs));
  return planned;
}

std::vector<ParameterPlace> parameter_places(const Explanation& facts) {
  const RunLayout& layout = facts.layout();
  const DimAxes dims = layout.dims();
  std::vector<ParameterPlace> places;
  for (const ParameterInit& parameter : facts.parameters) {
    const TensorType local = local_type(parameter.type, dims);
    const StateAxes state = state_axes_of(parameter.type, dims, state_axes(layout));
    const std::size_t cut = parameter.buffer ? 0 : state.param;
    places.push_back({.name = parameter.name,
                      .whole = parameter.type,
                      .axes = to_string(axes_of(parameter.type, dims)),
                      .local = local,
                      .elements_at_rest = slice_type(state, local, cut).num_elements(),
                      .sliced = cut > 0,
                      .frozen = parameter.frozen,
                      .buffer = parameter.buffer});
  }
  return places;
}

Explanation explain(RunConfig config, const std::string& target) {
  return explain(std::move(config),
                 target.empty() ? std::nullopt
                                : std::optional(with_context([&] { return "--target=" + target; },
                                                             [&] { return find_target(target); })));
}

Explanation explain(RunConfig config,
                    const std::optional<Target>& target,
                    const std::function<void(Plan&)>& change) {
  if (target) {
    config.run.device = to_string(target->kind);
  }
  Explanation facts;
  facts.config = resolve(std::move(config), ConfigUse::kPlan);
  facts.run = plan_run(
      facts.config, resolve_model(facts.config), target.value_or(run_target(facts.config)));
  if (change) {
    change(facts.run.plan);
  }
  const ResolvedLayout resolved = resolve_layout(facts.config);
  facts.device =
      facts.run.target.device.memory_bytes > 0 ? facts.run.target.device : resolved.device;
  facts.disk_bandwidth =
      resolved.disk_bandwidth > 0.0 ? resolved.disk_bandwidth : facts.disk_bandwidth;
  facts.notes = resolved.notes;
  facts.notes.insert(facts.notes.end(), facts.run.notes.begin(), facts.run.notes.end());
  facts.programs = compile_plan(facts.config, facts.run);
  facts.parameters = parameter_inits(step_graph(facts.run.plan));
  facts.counts = count_parameters(facts.parameters);
  PlannedMemory planned = planned_memory(facts.config, facts.run, facts.programs);
  if (planned.fit.of != MemoryFit::Limit::kNone) {
    const bool is_shared =
        planned.fit.of == MemoryFit::Limit::kMachine && !facts.run.target.is_device();
    facts.chosen =
        fit_memory(facts.run,
                   facts.programs,
                   facts.device,
                   {.limit = is_shared ? room_beside_others(planned.fit.limit) : planned.fit.limit,
                    .on_device = planned.memory.on_device,
                    .rates = move_rates(
                        facts.device, resolved.disk_bandwidth, ranks_on_machine(facts.config))},
                   facts.config.passes.dump);
  }
  if (facts.chosen) {
    planned = planned_memory(facts.config, facts.run, facts.programs);
  }
  facts.memory = std::move(planned.memory);
  facts.fit = planned.fit;
  for (const Programs& own : facts.programs) {
    facts.work.push_back(rank_work(own.step, facts.run.target, resolved));
  }
  return facts;
}

}  // namespace tessera
