#include "tessera/resolve/layer_search.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "tessera/passes/memory/recompute_layers.h"
#include "tessera/resolve/kernel_seconds.h"
#include "tessera/resolve/run_memory.h"

namespace tessera {
namespace {

constexpr int kMostRounds = 10;
constexpr std::size_t kMostTries = 16;
constexpr std::size_t kMostNodes = 6000;  // of all tries
constexpr double kWorthTrying = 0.01;     // of a microbatch's kernels

bool are_alike(const RecomputeRule& a, const RecomputeRule& b) {
  return a.kept == b.kept && a.keep == b.keep && a.again == b.again && a.store == b.store;
}

// Whether weight gradients are an action of their own.
bool splits_backward(const Plan& plan) {
  return plan.pipeline &&
         std::ranges::any_of(plan.pipeline->table.rows, [](const std::vector<StageAction>& row) {
           return std::ranges::find(row, ActionKind::kWeightGradient, &StageAction::kind) !=
                  row.end();
         });
}

// Of ops that rules name, those that their layer does not have: others may.
void drop_unknown(const Graph& graph, std::vector<RecomputeRule>& rules) {
  const std::vector<std::string> names = recompute_names(graph);
  std::map<std::int32_t, std::set<std::string>> known;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!names[i].empty()) {
      std::set<std::string>& own = known[graph.nodes[i].layer];
      own.insert(names[i]);
      own.insert(names[i].substr(0, names[i].rfind('.')));
    }
  }
  for (const auto& [layer, own] : known) {
    RecomputeRule& rule = rules[static_cast<std::size_t>(layer)];
    for (std::vector<std::string>* const ops : {&rule.keep, &rule.again}) {
      std::erase_if(*ops, [&](const std::string& op) { return !own.contains(op); });
    }
  }
}

}  // namespace

RunGraphs::RunGraphs(const PlannedRun& run, const DeviceSpec& device)
    : before(graphs_before_recompute(run.plan, run.target)),
      seconds(kernel_seconds(device, run.plan.dtype)) {
  for (const Graph& graph : before) {
    microbatch.push_back(microbatch_seconds(graph, seconds));
    double& of_update = update.emplace_back(0.0);
    for (const Node& node : graph.nodes) {
      of_update += node.phase == Phase::kUpdate ? seconds(graph, node) : 0.0;
    }
    to_choose.push_back(run.chooses_recompute ? graph
                                              : recompute_layers(graph, run.plan.passes.recompute));
  }
}

std::size_t RunGraphs::num_nodes() const {
  std::size_t nodes = 1;
  for (const Graph& graph : before) {
    nodes += graph.nodes.size();
  }
  return nodes;
}

std::vector<LayerChoices> layer_choices(const PlannedRun& run,
                                        const RunGraphs& graphs,
                                        std::size_t rank,
                                        std::optional<double> store_seconds) {
  if (!run.chooses_recompute && !store_seconds) {
    return {};
  }
  return recompute_choices(graphs.to_choose[rank],
                           graphs.seconds,
                           {.may_repeat = run.chooses_recompute,
                            .splits_backward = splits_backward(run.plan),
                            .store_seconds = store_seconds});
}

double in_flight(const Program& step) {
  std::size_t slots = 1;
  for (const Buffer& buffer : step.buffers) {
    if (buffer.category == Category::kActivation && buffer.pool.valid()) {
      slots = std::max(slots, buffer.offsets.size());
    }
  }
  return static_cast<double>(slots);
}

std::vector<RecomputeRule> by_layer(const RecomputeRules& rules, std::int64_t num_layers) {
  std::vector<RecomputeRule> result;
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    const auto found = std::ranges::find_if(
        rules, [&](const RecomputeRule& rule) { return rule.contains(layer); });
    RecomputeRule rule = found != rules.end() ? *found : RecomputeRule{.kept = RecomputeKept::kAll};
    rule.first = layer;
    rule.end = layer + 1;
    result.push_back(std::move(rule));
  }
  return result;
}

RecomputeRules joined(std::vector<RecomputeRule> rules) {
  RecomputeRules result;
  for (RecomputeRule& rule : rules) {
    if (are_alike(rule, {.kept = RecomputeKept::kAll})) {
      continue;
    }
    if (!result.empty() && result.back().end == rule.first && are_alike(result.back(), rule)) {
      result.back().end = rule.end;
    } else {
      result.push_back(std::move(rule));
    }
  }
  return result;
}

std::vector<std::int64_t> bytes_by_rank(const PlannedRun& run,
                                        const RunPrograms& programs,
                                        bool on_device) {
  const RunMemory memory = run_memory(run, programs, on_device);
  return memory.by_pipeline_rank.empty() ? std::vector{memory.total()} : memory.by_pipeline_rank;
}

LayerSearch::LayerSearch(PlannedRun& run,
                         const RunPrograms& programs,
                         const RunGraphs& graphs,
                         Options options)
    : run_(run),
      options_(std::move(options)),
      graphs_(graphs),
      bytes_(bytes_by_rank(run, programs, options_.on_device)),
      base_(by_layer(run.plan.passes.recompute, run.plan.model.num_layers)) {
  for (const Graph& graph : graphs.before) {
    drop_unknown(graph, base_);
  }
  learn_of_others(programs);
  for (std::size_t rank = 0; rank < graphs.before.size(); ++rank) {
    ranks_.emplace_back(layer_choices(run, graphs, rank, options_.store_seconds[rank]),
                        run.chooses_recompute,
                        in_flight(programs[rank].step),
                        !run.plan.pipeline || rank + 1 == graphs.before.size());
  }
}

template <class Learn>
void LayerSearch::for_each_compiled(const Learn& learn) {
  const std::vector<std::int64_t> bytes = compiled();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    learn(ranks_[i], bytes[i]);
  }
}

void LayerSearch::search() {
  const std::vector<std::int64_t> all = bytes_;
  least_ = compile_least();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i].begin(all[i], least_[i], options_.limit);
    ranks_[i].propose_last();
  }
  if (!is_done()) {
    for_each_compiled(
        [&](RankSearch& rank, std::int64_t bytes) { rank.learn_last(bytes, options_.limit); });
  }
  for (int round = 0; round < kMostRounds && !is_done(); ++round) {
    for (RankSearch& rank : ranks_) {
      rank.propose(options_.limit);
    }
    if (!is_done()) {
      for_each_compiled(
          [&](RankSearch& rank, std::int64_t bytes) { rank.learn(bytes, options_.limit); });
    }
  }
  look_around();
  if (std::ranges::any_of(
          ranks_, [&](const RankSearch& rank) { return rank.lacks_room(options_.limit); })) {
    for (RankSearch& rank : ranks_) {
      if (rank.lacks_room(options_.limit)) {
        rank.propose_smallest();
      } else {
        rank.take_best();
      }
    }
    for_each_compiled(
        [&](RankSearch& rank, std::int64_t bytes) { rank.learn_better(bytes, options_.limit); });
  }
  std::ranges::for_each(ranks_, &RankSearch::take_best);
  compiled();
}

std::vector<std::int64_t> LayerSearch::bytes_with(const std::vector<Program>& steps) const {
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    bytes.push_back(std::max(steps[i].arena_bytes, others_[i].validation) + host_bytes(steps[i]) +
                    others_[i].beside);
  }
  return bytes;
}

void LayerSearch::repeat_sums() {
  bool repeats = false;
  for (RankSearch& rank : ranks_) {
    repeats = rank.repeat_sums(options_.limit) || repeats;
  }
  if (repeats) {
    compiled();
  }
}

std::vector<std::int64_t> LayerSearch::compile_least() {
  std::ranges::for_each(ranks_, &RankSearch::propose_least);
  return compiled();
}

std::vector<std::int64_t> LayerSearch::compile_smallest() {
  std::ranges::for_each(ranks_, &RankSearch::propose_smallest);
  return compiled();
}

// As long as there is something worth it to try.
void LayerSearch::look_around() {
  for (std::size_t tries = std::min(kMostTries, kMostNodes / graphs_.num_nodes()); tries > 0;
       --tries) {
    bool is_worth_it = false;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      is_worth_it =
          ranks_[i].propose_better(options_.limit, kWorthTrying * graphs_.microbatch[i]) ||
          is_worth_it;
    }
    if (!is_worth_it) {
      return;
    }
    for_each_compiled(
        [&](RankSearch& rank, std::int64_t bytes) { rank.learn_better(bytes, options_.limit); });
  }
}

// What the run's programs take beside the steps, which stays as it is.
void LayerSearch::learn_of_others(const RunPrograms& programs) {
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const Programs& own = programs[i];
    others_.push_back({.validation = own.validation ? own.validation->arena_bytes : 0,
                       .beside = bytes_[i] - own.arena_bytes() - host_bytes(own.step)});
  }
}

std::int64_t LayerSearch::host_bytes(const Program& step) const {
  return options_.on_device ? 0 : step.host_bytes;
}

std::vector<std::int64_t> LayerSearch::compiled() {
  std::vector<RecomputeRule> rules = base_;
  for (const RankSearch& rank : ranks_) {
    rank.set_rules(rules);
  }
  RecomputeRules next = joined(std::move(rules));
  if (next != joined(by_layer(run_.plan.passes.recompute, run_.plan.model.num_layers))) {
    run_.plan.passes.recompute = std::move(next);
    steps_ = try_steps(graphs_.before, run_.plan, run_.target);
    bytes_ = bytes_with(steps_);
  }
  return bytes_;
}

}  // namespace tessera
