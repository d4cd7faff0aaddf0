#include "tessera/resolve/choose_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/op.h"
#include "tessera/passes/memory/recompute_layers.h"
#include "tessera/program/space_traffic.h"
#include "tessera/resolve/choose_states.h"
#include "tessera/resolve/kernel_seconds.h"
#include "tessera/resolve/layer_search.h"
#include "tessera/resolve/run_memory.h"

namespace tessera {
namespace {

// The run with so much of its states, by pipeline rank, where they may move, and nothing else that
// is chosen. What another key moves whole, all ranks move whole.
PlannedRun with_states(PlannedRun run, std::vector<OffloadedBytes> moved) {
  PassPlan& passes = run.plan.passes;
  bool is_chosen = false;
  const auto place = [&](Space& space, Space to, std::int64_t OffloadedBytes::* kind) {
    const bool moves =
        to != Space::kDevice &&
        std::ranges::any_of(moved, [&](const OffloadedBytes& own) { return own.*kind > 0; });
    is_chosen = is_chosen || moves;
    space = moves ? to : space;
    const std::int64_t all = space == Space::kDevice ? 0 : OffloadedBytes().*kind;
    for (OffloadedBytes& own : moved) {
      own.*kind = to != Space::kDevice ? own.*kind : all;
    }
  };
  place(passes.optimizer, run.may_move.optimizer, &OffloadedBytes::optimizer);
  place(passes.parameters, run.may_move.parameters, &OffloadedBytes::parameters);
  passes.moved_states = is_chosen ? std::move(moved) : std::vector<OffloadedBytes>();
  run.saves_in_background = run.saves_in_background && !passes.has_states_elsewhere();
  if (run.may_move.activations != Space::kDevice) {
    passes.activations = run.may_move.activations;
    passes.all_activations = false;
  }
  return run;
}

// Where nothing of that is stored, the plan says no space for it.
void drop_idle_space(PlannedRun& run) {
  PassPlan& passes = run.plan.passes;
  if (!passes.all_activations &&
      std::ranges::all_of(passes.recompute,
                          [](const RecomputeRule& rule) { return rule.store.empty(); })) {
    passes.activations = Space::kDevice;
    passes.all_activations = true;
  }
}

// Bytes of a program's buffers of a kind that are in another space.
std::int64_t bytes_elsewhere(const Program& program, Category category) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers) {
    bytes += buffer.space != Space::kDevice && buffer.category == category ? buffer.bytes : 0;
  }
  return bytes;
}

// States that may move and have, of the rank that has most of them elsewhere.
OffloadedBytes most_moved(const PlannedRun& run, const RunPrograms& programs) {
  const auto bytes = [](Space may, const Program& step, Category category) {
    return may != Space::kDevice ? bytes_elsewhere(step, category) : 0;
  };
  OffloadedBytes most = kNothingMoved;
  for (const Programs& own : programs) {
    const OffloadedBytes moved = {
        .optimizer = bytes(run.may_move.optimizer, own.step, Category::kOptimizer),
        .parameters = bytes(run.may_move.parameters, own.step, Category::kParameter)};
    if (moved.optimizer + moved.parameters > most.optimizer + most.parameters) {
      most = moved;
    }
  }
  return most;
}

double traffic_with(const Program& step, Space space) {
  const SpaceTraffic traffic = space_traffic(step, space);
  return static_cast<double>(traffic.fetched + traffic.stored);
}

// What the update moves of that.
double update_traffic(const Program& step, Space space) {
  double bytes = 0.0;
  for (const Segment& segment : step.segments) {
    if (segment.code.action != Action::kUpdate) {
      continue;
    }
    for (const Instruction& instruction : segment.instructions) {
      const bool fetches = instruction.op->get_if<FetchAttrs>() != nullptr;
      const bool stores = instruction.op->get_if<StoreAttrs>() != nullptr;
      for (const TensorRef& tensor : fetches ? instruction.operands : instruction.results) {
        const bool moves = (fetches || stores) && step[tensor.buffer].space == space;
        bytes += moves ? static_cast<double>(tensor.type.num_bytes()) : 0.0;
      }
    }
  }
  return bytes;
}

// All pipeline ranks of a run, with all that it may choose.
class MemorySearch {
 public:
  MemorySearch(PlannedRun& run,
               RunPrograms& programs,
               const DeviceSpec& device,
               const RankRoom& room)
      : run_(run),
        programs_(programs),
        room_(room),
        before_(run),
        graphs_(run, device),
        all_(bytes_by_rank(run, programs, room.on_device)),
        prices_(store_prices(rate_of(run.may_move.activations))),
        choices_(all_.size()) {}

  // The plan and the programs become those of what is chosen.
  ChosenMemory search(const std::filesystem::path& dump) {
    if (run_.may_move.any()) {
      estimate();
    }
    search_layers();
    for (int round = 1; round <= kMostRounds && (move_more(round) || store_more()); ++round) {
      search_layers();
    }
    layers_->repeat_sums();
    steps_ = layers_->take_steps();
    take_moved();
    PlannedRun more = run_;
    drop_idle_space(more);
    const bool is_less = move_less();
    take(dump);
    if (is_less &&
        std::ranges::max(bytes_by_rank(run_, programs_, room_.on_device)) > room_.limit) {
      // The validation beside the steps needs what was left.
      run_ = more;
      programs_ = compile_run(run_.plan, run_.target, dump);
    }
    return result();
  }

 private:
  static constexpr int kMostRounds = 6;
  static constexpr double kGigabyte = 1e9;

  double rate_of(Space space) const {
    return space == Space::kFile   ? room_.rates.disk
           : space == Space::kHost ? room_.rates.host_link
                                   : 0.0;
  }

  // Compiles what is chosen.
  void take(const std::filesystem::path& dump) {
    drop_idle_space(run_);
    if (!dump.empty() || (steps_.empty() && !costs_.empty())) {
      programs_ = compile_run(run_.plan, run_.target, dump);
    } else if (!steps_.empty()) {
      programs_ = with_validation(std::move(steps_), run_.plan, run_.target);
    }
  }

  void estimate() {
    find_costs();
    for (std::size_t rank = 0; rank < all_.size(); ++rank) {
      for (const std::optional<double>& price : prices_) {
        fronts_[rank].push_back(layer_choices(before_, graphs_, rank, price));
      }
      choices_[rank] = choose_states(costs_[rank], fronts_[rank]);
    }
    take_states();
  }

  // Of the run as it was, beside one that has all states elsewhere that may be.
  void find_costs() {
    const MayMove& may = before_.may_move;
    const Space space = may.optimizer != Space::kDevice ? may.optimizer : may.parameters;
    std::vector<Program> moved;
    if (may.states()) {
      const PlannedRun all = with_states(before_, std::vector<OffloadedBytes>(all_.size()));
      moved = try_steps(graphs_.before, all.plan, all.target);
    }
    // In the run as it was, with layers that keep the least.
    PlannedRun fewest =
        with_states(before_, std::vector<OffloadedBytes>(all_.size(), kNothingMoved));
    LayerSearch layers(fewest,
                       programs_,
                       graphs_,
                       {.limit = room_.limit,
                        .on_device = room_.on_device,
                        .store_seconds = std::vector(all_.size(), prices_.back())});
    const std::vector<std::int64_t> least = layers.compile_least();
    const std::vector<std::int64_t> smallest = layers.compile_smallest();
    PlannedRun without_copy = before_;
    without_copy.saves_in_background = false;
    const std::vector<std::int64_t> uncopied =
        bytes_by_rank(without_copy, programs_, room_.on_device);
    costs_.resize(all_.size());
    fronts_.resize(all_.size());
    for (std::size_t rank = 0; rank < all_.size(); ++rank) {
      const Program& step = programs_[rank].step;
      RankCosts& costs = costs_[rank];
      costs = {.excess = all_[rank] - room_.limit,
               .of_layers = all_[rank] - least[rank],
               .of_stores = all_[rank] - std::min(least[rank], smallest[rank]),
               .freed_copy = all_[rank] - uncopied[rank],
               .update = graphs_.update[rank],
               .microbatch = graphs_.microbatch[rank],
               .num_microbatches = static_cast<double>(before_.plan.num_microbatches),
               .in_flight = in_flight(step),
               .bandwidth = rate_of(space),
               // A link to the host goes both ways at once.
               .update_rate = (space == Space::kHost ? 2.0 : 1.0) * rate_of(space),
               .store_rate = rate_of(may.activations)};
      // Beside a CPU the host's memory is the same.
      if (!moved.empty() && (space == Space::kFile || room_.on_device)) {
        add_states(moved[rank], step, space, costs);
      }
    }
  }

  static void add_states(const Program& moved, const Program& step, Space space, RankCosts& costs) {
    const auto more = [&](Category category) {
      return bytes_elsewhere(moved, category) - bytes_elsewhere(step, category);
    };
    costs.states = {.optimizer = more(Category::kOptimizer),
                    .parameters = more(Category::kParameter)};
    const std::int64_t freed = step.arena_bytes - moved.arena_bytes;
    costs.staging =
        std::max<std::int64_t>(0, costs.states.optimizer + costs.states.parameters - freed);
    const double in_update = update_traffic(moved, space) - update_traffic(step, space) -
                             2.0 * static_cast<double>(costs.states.optimizer);
    costs.updated_io = in_update;
    costs.layers_io = traffic_with(moved, space) - traffic_with(step, space) -
                      2.0 * static_cast<double>(costs.states.optimizer) - in_update;
  }

  // The run becomes that with the states of the choices, and nothing else chosen; where no
  // validation stands beside its steps, these are not verified yet.
  void take_states() {
    run_ = with_states(before_, moved_states());
    if (run_.plan.validates) {
      programs_ = compile_run(run_.plan, run_.target);
      return;
    }
    std::vector<Programs> programs;
    for (Program& step : try_steps(graphs_.before, run_.plan, run_.target)) {
      programs.push_back({.step = std::move(step)});
    }
    programs_ = RunPrograms(run_.plan.layout.mesh, std::move(programs));
  }

  std::vector<OffloadedBytes> moved_states() const {
    std::vector<OffloadedBytes> moved;
    for (const RankChoice& choice : choices_) {
      moved.push_back(choice.moved);
    }
    return moved;
  }

  void search_layers() {
    std::vector<std::optional<double>> store_seconds;
    for (const RankChoice& choice : choices_) {
      store_seconds.push_back(prices_[choice.price]);
    }
    layers_.emplace(run_,
                    programs_,
                    graphs_,
                    LayerSearch::Options{.limit = room_.limit,
                                         .on_device = room_.on_device,
                                         .store_seconds = std::move(store_seconds)});
    layers_->search();
  }

  // As many more states as ranks have bytes too many, in the last round all. False: none have, or
  // none have any left.
  bool move_more(int round) {
    take_moved();
    bool moves = false;
    for (std::size_t rank = 0; rank < costs_.size(); ++rank) {
      std::int64_t missing = std::max<std::int64_t>(0, layers_->bytes()[rank] - room_.limit);
      for (const auto kind : {&OffloadedBytes::optimizer, &OffloadedBytes::parameters}) {
        std::int64_t& moved = choices_[rank].moved.*kind;
        const std::int64_t left = costs_[rank].states.*kind - moved;
        const bool takes_all = round == kMostRounds && missing > 0;
        const std::int64_t more = takes_all ? left : std::min(missing, left);
        moved += more;
        missing -= takes_all ? 0 : more;
        moves = moves || more > 0;
      }
    }
    if (moves) {
      take_states();
    }
    return moves;
  }

  // Ranks that have no room though all of their states move store more of their layers, where the
  // estimate saw no need. False: none do.
  bool store_more() {
    bool stores = false;
    for (std::size_t rank = 0; rank < costs_.size(); ++rank) {
      const bool is_over = layers_->bytes()[rank] > room_.limit;
      if (is_over && choices_[rank].price + 1 < prices_.size()) {
        choices_[rank].price = prices_.size() - 1;
        stores = true;
      }
    }
    if (stores) {
      take_states();
    }
    return stores;
  }

  // Tensors move whole: what choices ask for becomes what they got.
  void take_moved() {
    for (std::size_t rank = 0; rank < costs_.size(); ++rank) {
      const auto take = [&](Space may, Category category, std::int64_t& moved) {
        moved = may != Space::kDevice ? bytes_elsewhere(programs_[rank].step, category) : moved;
      };
      OffloadedBytes& moved = choices_[rank].moved;
      take(before_.may_move.optimizer, Category::kOptimizer, moved.optimizer);
      take(before_.may_move.parameters, Category::kParameter, moved.parameters);
    }
  }

  // Whether some rank moves a good part less than now.
  bool is_worth_it(const std::vector<OffloadedBytes>& fewer) const {
    constexpr double kGoodPart = 0.02;
    for (std::size_t rank = 0; rank < fewer.size(); ++rank) {
      const OffloadedBytes& now = choices_[rank].moved;
      const std::int64_t before = now.optimizer + now.parameters;
      const std::int64_t after = fewer[rank].optimizer + fewer[rank].parameters;
      if (static_cast<double>(before - after) > kGoodPart * static_cast<double>(before)) {
        return true;
      }
    }
    return false;
  }

  // As many fewer states as there is room left for, where layers stay as they are. False: none.
  bool move_less() {
    std::vector<OffloadedBytes> fewer = moved_states();
    for (std::size_t rank = 0; rank < fewer.size(); ++rank) {
      std::int64_t left = std::max<std::int64_t>(0, room_.limit - layers_->bytes()[rank]);
      for (const auto kind : {&OffloadedBytes::parameters, &OffloadedBytes::optimizer}) {
        const std::int64_t less = std::min(left, fewer[rank].*kind);
        fewer[rank].*kind -= less;
        left -= less;
      }
    }
    if (!is_worth_it(fewer)) {
      return false;
    }
    PlannedRun changed = with_states(before_, fewer);
    changed.plan.passes.recompute = run_.plan.passes.recompute;
    if (changed.saves_in_background != run_.saves_in_background) {
      return false;  // a copy of all states is to have room again
    }
    std::vector<Program> steps = try_steps(graphs_.before, changed.plan, changed.target);
    if (std::ranges::max(layers_->bytes_with(steps)) > room_.limit) {
      return false;
    }
    run_ = std::move(changed);
    steps_ = std::move(steps);
    return true;
  }

  ChosenMemory result() {
    take_moved();
    const std::vector<std::int64_t> bytes = bytes_by_rank(run_, programs_, room_.on_device);
    ChosenMemory result = {.for_states = 0.0,
                           .for_layers = 0.0,
                           .moved = most_moved(run_, programs_),
                           .all_bytes = std::ranges::max(all_),
                           .bytes = std::ranges::max(bytes)};
    double with_more = 0.0;
    for (std::size_t rank = 0; rank < all_.size(); ++rank) {
      const double whole = graphs_.microbatch[rank];
      const ChosenCosts layers = layers_->rank(rank).costs();
      ChosenMemory own = result;
      own.repeated = layers.repeated / whole;
      double more = 0.0;
      if (costs_.empty()) {
        more = layers_->rank(rank).seconds_with(kGigabyte) / whole;
      } else {
        const double step = costs_[rank].num_microbatches * whole;
        const auto added = [&](double stored) {
          return added_seconds(costs_[rank], choices_[rank].moved, layers.repeated, stored) / step;
        };
        own.for_states = added(0.0) - own.repeated;
        own.for_layers = added(static_cast<double>(layers.stored_bytes)) - added(0.0);
        RankCosts roomier = costs_[rank];
        roomier.excess -= static_cast<std::int64_t>(kGigabyte);
        more = std::min(own.added(), choose_states(roomier, fronts_[rank]).seconds / step);
      }
      result = rank == 0 || own.added() > result.added() ? own : result;
      with_more = std::max(with_more, more);
    }
    result.search = {.least_bytes = std::ranges::max(layers_->least())};
    if (result.bytes <= room_.limit) {
      result.search->saved_by_gigabyte = std::max(0.0, result.added() - with_more);
    }
    return result;
  }

  PlannedRun& run_;
  RunPrograms& programs_;
  RankRoom room_;
  PlannedRun before_;
  RunGraphs graphs_;
  std::vector<std::int64_t> all_;              // bytes by rank, of the run as it was
  std::vector<std::optional<double>> prices_;  // of a byte that is stored
  std::vector<RankChoice> choices_;            // by rank
  std::vector<RankCosts> costs_;               // by rank; none where recompute alone is chosen
  std::vector<std::vector<std::vector<LayerChoices>>> fronts_;  // likewise; then by price
  std::optional<LayerSearch> layers_;
  std::vector<Program> steps_;  // of what is chosen; none where they are in programs_
};

// What "auto" is said of.
ChosenOf chosen_of(const PlannedRun& run) {
  return {.recompute = run.chooses_recompute,
          .optimizer = run.may_move.optimizer != Space::kDevice,
          .parameters = run.may_move.parameters != Space::kDevice,
          .activations = run.may_move.activations != Space::kDevice};
}

// The run with what an earlier start chose, where it is of such a run.
std::optional<PlannedRun> with_choice(const PlannedRun& run, const MemoryChoice& choice) {
  const auto stores = [](const RecomputeRule& rule) { return !rule.store.empty(); };
  const std::int64_t ranks = num_pipeline_ranks(run.plan.layout.mesh);
  const auto moved = static_cast<std::int64_t>(choice.moved_states.size());
  if (std::ranges::any_of(
          choice.rules,
          [&](const RecomputeRule& rule) { return rule.end > run.plan.model.num_layers; }) ||
      (moved > 0 && (moved != ranks || !run.may_move.states())) ||
      (std::ranges::any_of(choice.rules, stores) && run.may_move.activations == Space::kDevice) ||
      choice.of != chosen_of(run)) {
    return std::nullopt;
  }
  std::vector<OffloadedBytes> states = choice.moved_states;
  states.resize(static_cast<std::size_t>(ranks), kNothingMoved);
  PlannedRun chosen = with_states(run, std::move(states));
  RecomputeRules& rules = chosen.plan.passes.recompute;
  if (run.chooses_recompute) {
    rules = choice.rules;
  } else if (std::ranges::any_of(choice.rules, stores)) {
    std::vector<RecomputeRule> layers = by_layer(rules, run.plan.model.num_layers);
    for (RecomputeRule& layer : layers) {
      for (const RecomputeRule& rule : choice.rules) {
        layer.store = rule.contains(layer.first) ? rule.store : layer.store;
      }
    }
    rules = joined(std::move(layers));
  }
  drop_idle_space(chosen);
  return chosen;
}

// In a run that was changed since, its ops may be others: then there are no programs of it.
std::optional<RunPrograms> compile_choice(const PlannedRun& run,
                                          const std::filesystem::path& dump) {
  try {
    return compile_run(run.plan, run.target, dump);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidConfig) {
      throw;
    }
    return std::nullopt;
  }
}

// The part of the work that the plan's rules repeat where they are chosen, on the pipeline rank
// that repeats most.
double repeated_by_rules(const PlannedRun& run, const DeviceSpec& device) {
  if (!run.chooses_recompute) {
    return 0.0;
  }
  const NodeSeconds seconds = kernel_seconds(device, run.plan.dtype);
  const NodeSeconds of_kernels = [&](const Graph& graph, const Node& node) {
    return collectives(*node.op, graph.types(node.operands)).empty() ? seconds(graph, node) : 0.0;
  };
  double most = 0.0;
  for (const Graph& graph : graphs_before_recompute(run.plan, run.target)) {
    const Graph recomputed = recompute_layers(graph, run.plan.passes.recompute);
    const double again =
        microbatch_seconds(recomputed, of_kernels) - microbatch_seconds(graph, of_kernels);
    most = std::max(most, again / microbatch_seconds(graph, seconds));
  }
  return most;
}

std::optional<ChosenMemory> take_earlier_choice(PlannedRun& run,
                                                RunPrograms& programs,
                                                const DeviceSpec& device,
                                                const RankRoom& room,
                                                const std::filesystem::path& dump) {
  constexpr double kMuchMore = 1.05;
  if (!run.chosen_before) {
    return std::nullopt;
  }
  const std::int64_t all = run_memory(run, programs, room.on_device).total();
  if (run.chosen_before->all_bytes != all ||
      static_cast<double>(room.limit) > kMuchMore * static_cast<double>(run.chosen_before->limit)) {
    return std::nullopt;
  }
  std::optional<PlannedRun> as_chosen = with_choice(run, *run.chosen_before);
  std::optional<RunPrograms> own = as_chosen ? compile_choice(*as_chosen, dump) : std::nullopt;
  if (!own) {
    return std::nullopt;
  }
  const std::int64_t bytes = run_memory(*as_chosen, *own, room.on_device).total();
  if (bytes > room.limit) {
    return std::nullopt;
  }
  run = *std::move(as_chosen);
  programs = *std::move(own);
  return ChosenMemory{.repeated = repeated_by_rules(run, device),
                      .moved = most_moved(run, programs),
                      .all_bytes = all,
                      .bytes = bytes};
}

}  // namespace

MoveRates move_rates(const DeviceSpec& device, double disk_bandwidth, std::int64_t ranks) {
  MoveRates rates;
  rates.disk = (disk_bandwidth > 0.0 ? disk_bandwidth : rates.disk) / static_cast<double>(ranks);
  rates.host_link = device.host_link > 0.0 ? device.host_link : rates.host_link;
  return rates;
}

std::int64_t room_beside_others(std::int64_t free) {
  constexpr std::int64_t kSpared = 20;  // one part of so many
  return free - free / kSpared;
}

std::optional<ChosenMemory> fit_memory(PlannedRun& run,
                                       RunPrograms& programs,
                                       const DeviceSpec& device,
                                       const RankRoom& room,
                                       const std::filesystem::path& dump) {
  if (!run.chooses_memory() || run_memory(run, programs, room.on_device).total() <= room.limit) {
    return std::nullopt;
  }
  if (const auto taken = take_earlier_choice(run, programs, device, room, dump)) {
    return taken;
  }
  return MemorySearch(run, programs, device, room).search(dump);
}

MemoryChoice choice_of(const PlannedRun& run, const ChosenMemory& chosen, std::int64_t limit) {
  MemoryChoice choice = {.limit = limit,
                         .all_bytes = chosen.all_bytes,
                         .moved_states = run.plan.passes.moved_states,
                         .of = chosen_of(run)};
  for (OffloadedBytes& moved : choice.moved_states) {
    moved.optimizer = run.may_move.optimizer != Space::kDevice ? moved.optimizer : 0;
    moved.parameters = run.may_move.parameters != Space::kDevice ? moved.parameters : 0;
  }
  for (const RecomputeRule& rule : run.plan.passes.recompute) {
    if (run.chooses_recompute) {
      choice.rules.push_back(rule);
    } else if (!rule.store.empty()) {
      choice.rules.push_back({.first = rule.first, .end = rule.end, .store = rule.store});
    }
  }
  return choice;
}

}  // namespace tessera
