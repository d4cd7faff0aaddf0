#include "tessera/resolve/choose_recompute.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/cost/device_time.h"
#include "tessera/ops/op.h"
#include "tessera/ops/work.h"
#include "tessera/passes/memory/recompute_layers.h"
#include "tessera/plan/model_costs.h"
#include "tessera/resolve/recompute_rules.h"
#include "tessera/resolve/run_memory.h"

namespace tessera {
namespace {

// By layer, the number of a choice of its front.
using Chosen = std::vector<std::size_t>;

std::int64_t bytes_above_least(const LayerChoices& layer) {
  return layer.front.back().bytes - layer.front.front().bytes;
}

// Choices for the layers of a pipeline rank that need least time for their bytes.
class Knapsack {
 public:
  // `weights`: by layer, what a byte of it counts.
  Knapsack(const std::vector<LayerChoices>& layers, const std::vector<double>& weights) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      all_bytes_ += weights[i] * static_cast<double>(bytes_above_least(layers[i]));
    }
    for (std::size_t i = 0; i < layers.size(); ++i) {
      add_layer(layers[i], weights[i]);
    }
  }

  // Above the least, where all is kept.
  double all_bytes() const { return all_bytes_; }

  Chosen choose(double bytes) const {
    const double part = all_bytes_ > 0.0 ? std::clamp(bytes / all_bytes_, 0.0, 1.0) : 0.0;
    auto room = static_cast<std::size_t>(part * static_cast<double>(kGranules));
    Chosen chosen(layers_.size());
    for (std::size_t i = layers_.size(); i-- > 0;) {
      chosen[i] = layers_[i].chosen[room];
      room -= layers_[i].granules[chosen[i]];
    }
    return chosen;
  }

 private:
  static constexpr std::size_t kGranules = 4096;

  struct Layer {
    std::vector<std::size_t> granules = {};  // by choice
    std::vector<std::uint16_t> chosen = {};  // by room, the best with those before it
  };

  void add_layer(const LayerChoices& layer, double weight) {
    Layer& added = layers_.emplace_back();
    std::vector<double> next(kGranules + 1, std::numeric_limits<double>::infinity());
    added.chosen.resize(next.size());
    for (std::size_t i = 0; i < layer.front.size(); ++i) {
      const auto bytes = static_cast<double>(layer.front[i].bytes - layer.front[0].bytes);
      const double part = all_bytes_ > 0.0 ? weight * bytes / all_bytes_ : 0.0;
      // All together take all that there is.
      const auto taken = static_cast<std::size_t>(part * static_cast<double>(kGranules));
      added.granules.push_back(taken);
      for (std::size_t room = taken; room < next.size(); ++room) {
        const double seconds = least_[room - taken] + layer.front[i].seconds;
        if (seconds < next[room]) {
          next[room] = seconds;
          added.chosen[room] = static_cast<std::uint16_t>(i);
        }
      }
    }
    least_ = std::move(next);
  }

  double all_bytes_ = 0.0;
  std::vector<Layer> layers_;
  std::vector<double> least_ = std::vector<double>(kGranules + 1, 0.0);  // seconds, by room
};

// Of layers that are alike those keep most whose backward comes first: when that of the others
// begins, it is free again.
void sort_alike(const std::vector<LayerChoices>& layers, std::size_t end, Chosen& chosen) {
  const auto alike = [&](std::size_t a, std::size_t b) {
    return std::ranges::equal(
        layers[a].front, layers[b].front, {}, &KeptChoice::bytes, &KeptChoice::bytes);
  };
  for (std::size_t begin = 0; begin < end;) {
    std::size_t last = begin;
    while (last < end && alike(begin, last)) {
      ++last;
    }
    std::sort(chosen.begin() + static_cast<std::ptrdiff_t>(begin),
              chosen.begin() + static_cast<std::ptrdiff_t>(last));
    begin = last;
  }
}

// The layers of a pipeline rank, and between what fits and what does not the search for the most
// that they may keep.
class RankSearch {
 public:
  explicit RankSearch(std::vector<LayerChoices> layers) : layers_(std::move(layers)) {}

  // What a rank needs that keeps all, and one that keeps the least.
  void begin(std::int64_t all, std::int64_t least, std::int64_t limit) {
    is_done_ = all <= limit || least > limit || layers_.empty();
    if (layers_.empty()) {
      return;
    }
    best_ = all <= limit ? all_kept() : Chosen(layers_.size(), 0);
    best_bytes_ = all <= limit ? all : least;
    repeats_sums_ = all > limit && least > limit;
    above_bytes_ = all;
    below_bytes_ = least;
    all_bytes_ = static_cast<double>(all - least);
    std::int64_t bytes = 0;
    for (const LayerChoices& layer : layers_) {
      bytes += bytes_above_least(layer);
    }
    in_flight_ = bytes > 0
                     ? std::max(1.0, static_cast<double>(all - least) / static_cast<double>(bytes))
                     : 1.0;
  }

  bool is_done() const { return is_done_; }

  void propose_least() { proposed_.assign(layers_.size(), 0); }

  // The least, but that its last layer keeps all: of one microbatch that is no more than its
  // backward needs, which is the first of all.
  void propose_last() {
    proposed_ = best_;
    if (!is_done_) {
      proposed_.back() = layers_.back().front.size() - 1;
    }
  }

  void learn_last(std::int64_t bytes, std::int64_t limit) {
    if (is_done_) {
      return;
    }
    const auto own = static_cast<double>(bytes_above_least(layers_.back()));
    const double taken = own > 0.0 ? static_cast<double>(bytes - below_bytes_) / own : 0.0;
    weights_.assign(layers_.size(), in_flight_);
    weights_.back() = std::clamp(taken, 0.0, in_flight_);
    spares_last_ = weights_.back() < in_flight_ / 2.0;
    knapsack_.emplace(layers_, weights_);
    above_ = knapsack_->all_bytes();
    if (bytes <= limit && spares_last_) {
      best_ = proposed_;
      best_bytes_ = bytes;
    }
  }

  // Where a line through what fits and what does not says that it just fits; between what is known
  // already, in the middle.
  void propose(std::int64_t limit) {
    double part = static_cast<double>(limit - below_bytes_) /
                  std::max(1.0, static_cast<double>(above_bytes_ - below_bytes_));
    while (!is_done_) {
      const double width = above_ - below_;
      kept_ = below_ + std::clamp(part, kLeastPart, 1.0 - kLeastPart) * width;
      proposed_ = knapsack_->choose(kept_);
      sort_alike(layers_, layers_.size() - (spares_last_ ? 1 : 0), proposed_);
      is_done_ = width <= kLeastWidth * knapsack_->all_bytes();
      if (proposed_ != best_ && proposed_ != refused_) {
        break;
      }
      (proposed_ == best_ ? below_ : above_) = kept_;
      part = 0.5;
    }
    if (is_done_) {
      proposed_ = best_;
    }
  }

  void learn(std::int64_t bytes, std::int64_t limit) {
    if (is_done_) {
      return;
    }
    const bool fits = bytes <= limit;
    (fits ? below_ : above_) = kept_;
    (fits ? below_bytes_ : above_bytes_) = bytes;
    if (fits && seconds_of(proposed_) < seconds_of(best_)) {
      best_ = proposed_;
      best_bytes_ = bytes;
    }
    if (!fits) {
      refused_ = proposed_;
    }
    is_done_ = fits && static_cast<double>(limit - bytes) < kLeastWidth * all_bytes_;
  }

  void take_best() { proposed_ = best_; }

  // Single layers that repeat less than in the best, of which a line through bytes is no good judge
  // where layers are few: what saves most first, each worth `least` seconds or more. False: there
  // is none to try.
  bool propose_better(std::int64_t limit, double least) {
    proposed_ = best_;
    if (!knapsack_) {
      return false;
    }
    const double room = static_cast<double>(limit - best_bytes_) + kDoubt * all_bytes_;
    double most = least;
    std::optional<std::pair<std::size_t, std::size_t>> better;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const std::vector<KeptChoice>& front = layers_[i].front;
      for (std::size_t k = best_[i] + 1; k < front.size(); ++k) {
        const double gain = front[best_[i]].seconds - front[k].seconds;
        const auto bytes = static_cast<double>(front[k].bytes - front[best_[i]].bytes);
        Chosen changed = best_;
        changed[i] = k;
        if (gain > most && weights_[i] * bytes <= room && !tried_.contains(changed)) {
          most = gain;
          better = {i, k};
        }
      }
    }
    if (better) {
      proposed_[better->first] = better->second;
      tried_.insert(proposed_);
    }
    return better.has_value();
  }

  void learn_better(std::int64_t bytes, std::int64_t limit) {
    if (bytes <= limit && proposed_ != best_) {
      best_ = proposed_;
      best_bytes_ = bytes;
    }
  }

  double seconds() const { return seconds_of(proposed_); }

  // With so many bytes more, as far as what was compiled says how many of them values get.
  double seconds_with(double more) const {
    if (!knapsack_) {
      return seconds();
    }
    const double bytes = below_ + more / all_bytes_ * knapsack_->all_bytes();
    return std::min(seconds(), seconds_of(knapsack_->choose(bytes)));
  }

  void add_rules(std::vector<RecomputeRule>& rules) const {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const KeptChoice& choice = layers_[i].front[proposed_[i]];
      const bool keeps_all = proposed_[i] + 1 == layers_[i].front.size();
      if (keeps_all && !repeats_sums_) {
        continue;
      }
      rules.push_back({.first = layers_[i].layer,
                       .end = layers_[i].layer + 1,
                       .keep = repeats_sums_ ? std::vector<std::string>() : choice.keep});
    }
  }

 private:
  static constexpr double kLeastPart = 0.05;    // of the bracket, that it shrinks by
  static constexpr double kLeastWidth = 0.004;  // of all, that is looked for
  static constexpr double kDoubt = 0.05;        // of all, by which bytes of a layer may be wrong

  Chosen all_kept() const {
    Chosen chosen;
    for (const LayerChoices& layer : layers_) {
      chosen.push_back(layer.front.size() - 1);
    }
    return chosen;
  }

  double seconds_of(const Chosen& chosen) const {
    double seconds = 0.0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      seconds += layers_[i].front[chosen[i]].seconds;
    }
    return seconds;
  }

  std::vector<LayerChoices> layers_;
  std::vector<double> weights_;  // by layer, of its bytes in the arena
  std::set<Chosen> tried_;       // by propose_better()
  Chosen best_;                  // of those that fit
  std::int64_t best_bytes_ = 0;  // of a rank with it
  Chosen refused_;               // the last that did not
  Chosen proposed_;              // to be compiled
  bool is_done_ = false;
  bool repeats_sums_ = false;
  bool spares_last_ = false;
  double all_bytes_ = 0.0;  // above the least
  double in_flight_ = 1.0;
  std::optional<Knapsack> knapsack_;
  double kept_ = 0.0;  // of the proposed
  double below_ = 0.0;
  double above_ = 0.0;
  std::int64_t below_bytes_ = 0;
  std::int64_t above_bytes_ = 0;
};

// Consecutive layers of one way become one rule.
RecomputeRules joined(std::vector<RecomputeRule> rules) {
  std::ranges::sort(rules, {}, &RecomputeRule::first);
  RecomputeRules result;
  for (RecomputeRule& rule : rules) {
    if (!result.empty() && result.back().end == rule.first && result.back().keep == rule.keep) {
      result.back().end = rule.end;
    } else {
      result.push_back(std::move(rule));
    }
  }
  return result;
}

// All pipeline ranks of a run.
class RunSearch {
 public:
  RunSearch(PlannedRun& run,
            const RunPrograms& programs,
            const DeviceSpec& device,
            const RankRoom& room)
      : run_(run), limit_(room.limit), graphs_(graphs_before_recompute(run.plan, run.target)) {
    learn_of_others(programs, run_memory(run, programs, room.on_device));
    const NodeSeconds seconds = kernel_seconds(device, run.plan.dtype);
    for (const Graph& graph : graphs_) {
      ranks_.emplace_back(recompute_choices(graph, seconds));
      whole_.push_back(microbatch_seconds(graph, seconds));
    }
  }

  // The rules become the plan's.
  ChosenRecompute search() {
    const std::vector<std::int64_t> all = bytes_;
    for (RankSearch& rank : ranks_) {
      rank.propose_least();
    }
    const std::vector<std::int64_t> least = compiled();
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].begin(all[i], least[i], limit_);
      ranks_[i].propose_last();
    }
    if (!is_done()) {
      for_each_compiled(
          [&](RankSearch& rank, std::int64_t bytes) { rank.learn_last(bytes, limit_); });
    }
    for (int round = 0; round < kMostRounds && !is_done(); ++round) {
      for (RankSearch& rank : ranks_) {
        rank.propose(limit_);
      }
      if (!is_done()) {
        for_each_compiled([&](RankSearch& rank, std::int64_t bytes) { rank.learn(bytes, limit_); });
      }
    }
    look_around();
    for (RankSearch& rank : ranks_) {
      rank.take_best();
    }
    const std::vector<std::int64_t> chosen = compiled();
    ChosenRecompute result = {.all_bytes = std::ranges::max(all),
                              .bytes = std::ranges::max(chosen)};
    constexpr double kGigabyte = 1e9;
    double with_more = 0.0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      result.repeated = std::max(result.repeated, ranks_[i].seconds() / whole_[i]);
      with_more = std::max(with_more, ranks_[i].seconds_with(kGigabyte) / whole_[i]);
    }
    result.search = {.least_bytes = std::ranges::max(least)};
    if (result.bytes <= limit_) {
      result.search->saved_by_gigabyte = result.repeated - with_more;
    }
    return result;
  }

  // The last that were compiled: those of the plan's rules. None where all is kept.
  std::vector<Program> take_steps() { return std::move(steps_); }

 private:
  static constexpr int kMostRounds = 6;
  static constexpr std::size_t kMostTries = 16;
  static constexpr std::size_t kMostNodes = 6000;  // of all tries
  static constexpr double kWorthTrying = 0.01;     // of a microbatch's kernels

  bool is_done() const { return std::ranges::all_of(ranks_, &RankSearch::is_done); }

  // As long as there is something worth it to try.
  void look_around() {
    std::size_t nodes = 1;
    for (const Graph& graph : graphs_) {
      nodes += graph.nodes.size();
    }
    for (std::size_t tries = std::min(kMostTries, kMostNodes / nodes); tries > 0; --tries) {
      bool is_worth_it = false;
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        is_worth_it = ranks_[i].propose_better(limit_, kWorthTrying * whole_[i]) || is_worth_it;
      }
      if (!is_worth_it) {
        return;
      }
      for_each_compiled(
          [&](RankSearch& rank, std::int64_t bytes) { rank.learn_better(bytes, limit_); });
    }
  }

  // What the run's programs take beside the steps, which stays as it is.
  void learn_of_others(const RunPrograms& programs, const RunMemory& memory) {
    bytes_ = memory.by_pipeline_rank;
    if (bytes_.empty()) {
      bytes_.push_back(memory.total());
    }
    for (std::size_t i = 0; i < programs.size(); ++i) {
      const Programs& own = programs[i];
      others_.push_back({.validation = own.validation ? own.validation->arena_bytes : 0,
                         .beside = bytes_[i] - own.arena_bytes() - host_bytes(own.step)});
    }
  }

  std::int64_t host_bytes(const Program& step) const {
    return run_.target.is_device() ? 0 : step.host_bytes;
  }

  // Bytes of each pipeline rank with what ranks propose.
  std::vector<std::int64_t> compiled() {
    std::vector<RecomputeRule> rules;
    for (const RankSearch& rank : ranks_) {
      rank.add_rules(rules);
    }
    RecomputeRules next = joined(std::move(rules));
    if (next != run_.plan.passes.recompute) {
      run_.plan.passes.recompute = std::move(next);
      steps_ = try_steps(graphs_, run_.plan, run_.target);
      for (std::size_t i = 0; i < steps_.size(); ++i) {
        bytes_[i] = std::max(steps_[i].arena_bytes, others_[i].validation) + host_bytes(steps_[i]) +
                    others_[i].beside;
      }
    }
    return bytes_;
  }

  template <class Learn>
  void for_each_compiled(const Learn& learn) {
    const std::vector<std::int64_t> bytes = compiled();
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      learn(ranks_[i], bytes[i]);
    }
  }

  struct Others {
    std::int64_t validation = 0;  // in the same arena
    std::int64_t beside = 0;      // the arena
  };

  PlannedRun& run_;
  std::int64_t limit_;
  std::vector<Graph> graphs_;  // by rank, before anything is recomputed
  std::vector<Others> others_;
  std::vector<Program> steps_;       // of the plan's rules; none before others were tried
  std::vector<std::int64_t> bytes_;  // with them
  std::vector<RankSearch> ranks_;
  std::vector<double> whole_;  // by rank, what kernels of a microbatch take
};

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

// The part of the work that the plan's rules repeat, on the pipeline rank that repeats most.
double repeated_by_rules(const PlannedRun& run, const DeviceSpec& device) {
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

std::optional<ChosenRecompute> take_earlier_choice(PlannedRun& run,
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
      std::ranges::any_of(
          run.chosen_before->rules,
          [&](const RecomputeRule& rule) { return rule.end > run.plan.model.num_layers; }) ||
      static_cast<double>(room.limit) > kMuchMore * static_cast<double>(run.chosen_before->limit)) {
    return std::nullopt;
  }
  PlannedRun as_chosen = run;
  as_chosen.plan.passes.recompute = run.chosen_before->rules;
  std::optional<RunPrograms> own = compile_choice(as_chosen, dump);
  if (!own) {
    return std::nullopt;
  }
  const std::int64_t bytes = run_memory(as_chosen, *own, room.on_device).total();
  if (bytes > room.limit) {
    return std::nullopt;
  }
  run = std::move(as_chosen);
  programs = *std::move(own);
  return ChosenRecompute{
      .repeated = repeated_by_rules(run, device), .all_bytes = all, .bytes = bytes};
}

}  // namespace

double microbatch_seconds(const Graph& graph, const NodeSeconds& seconds) {
  double whole = 0.0;
  for (const Node& node : graph.nodes) {
    const bool is_of_microbatch = node.phase != Phase::kStart && node.phase != Phase::kUpdate;
    whole += is_of_microbatch ? seconds(graph, node) : 0.0;
  }
  return whole;
}

std::int64_t room_beside_others(std::int64_t free) {
  constexpr std::int64_t kSpared = 20;  // one part of so many
  return free - free / kSpared;
}

NodeSeconds kernel_seconds(const DeviceSpec& device, DType dtype) {
  constexpr double kUsualFlops = 1e11;
  constexpr double kUsualBandwidth = 1e10;
  DeviceSpec known = device;
  if (!has_speed(device, dtype) || !has_speed(device, DType::kF32)) {
    known = {.name = "core", .memory_bandwidth = kUsualBandwidth};
    known.peak_flops = {.f32 = kUsualFlops, .bf16 = kUsualFlops};
    known.is_cores = true;
  }
  return [time = DeviceTime(known)](const Graph& graph, const Node& node) {
    return time.seconds(work(*node.op, graph.types(node.operands)));
  };
}

std::optional<ChosenRecompute> fit_recompute(PlannedRun& run,
                                             RunPrograms& programs,
                                             const DeviceSpec& device,
                                             const RankRoom& room,
                                             const std::filesystem::path& dump) {
  if (!run.chooses_recompute || run_memory(run, programs, room.on_device).total() <= room.limit) {
    return std::nullopt;
  }
  if (const auto taken = take_earlier_choice(run, programs, device, room, dump)) {
    return taken;
  }
  RunSearch search(run, programs, device, room);
  const ChosenRecompute chosen = search.search();
  if (!dump.empty()) {
    programs = compile_run(run.plan, run.target, dump);
  } else if (std::vector<Program> steps = search.take_steps(); !steps.empty()) {
    programs = with_validation(std::move(steps), run.plan, run.target);
  }
  return chosen;
}

std::string to_string(const ChosenRecompute& chosen, const RecomputeRules& rules) {
  std::string text =
      format("memory.recompute = \"auto\": {}, which repeats {:.1f} % of a step's work",
             to_string(rules),
             100.0 * chosen.repeated);
  if (!chosen.search) {
    text += ", as an earlier start chose";
  } else if (chosen.search->saved_by_gigabyte) {
    text += format(", {:.1f} % with 1 GB more",
                   100.0 * (chosen.repeated - *chosen.search->saved_by_gigabyte));
  }
  return text + format("; to keep all needs {}", format_bytes(chosen.all_bytes));
}

}  // namespace tessera
