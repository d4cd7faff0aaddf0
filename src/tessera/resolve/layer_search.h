#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/mesh/device_spec.h"
#include "tessera/passes/memory/recompute_choices.h"
#include "tessera/passes/memory/recompute_rule.h"
#include "tessera/plan/compile.h"
#include "tessera/program/program.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/rank_search.h"

namespace tessera {

// By pipeline rank, what is known of a run's steps before anything is recomputed.
struct RunGraphs {
  RunGraphs(const PlannedRun& run, const DeviceSpec& device);

  std::size_t num_nodes() const;

  std::vector<Graph> before;        // as recompute_layers takes them
  std::vector<Graph> to_choose;     // of which choices are: after it where the run says its rules
  NodeSeconds seconds;              // kernel_seconds()
  std::vector<double> microbatch;   // seconds of a microbatch's kernels,
  std::vector<double> update = {};  // and of a step's update
};

// The choices of a rank's layers, none where they have none to make. `store_seconds`: as
// ChoiceOptions.
std::vector<LayerChoices> layer_choices(const PlannedRun& run,
                                        const RunGraphs& graphs,
                                        std::size_t rank,
                                        std::optional<double> store_seconds);

// Microbatches whose activations are there at once.
double in_flight(const Program& step);

// The rule of each layer of a model; those that are in none keep all.
std::vector<RecomputeRule> by_layer(const RecomputeRules& rules, std::int64_t num_layers);

// Of rules by layer, consecutive ones of one kind are one, and those that keep all on the device
// none.
RecomputeRules joined(std::vector<RecomputeRule> rules);

// What a rank of each pipeline rank takes in all (run_memory()).
std::vector<std::int64_t> bytes_by_rank(const PlannedRun& run,
                                        const RunPrograms& programs,
                                        bool on_device);

// What the layers of all pipeline ranks of a run keep, repeat and store where each rank may use
// `limit` bytes, and its states lie where its plan says.
class LayerSearch {
 public:
  struct Options {
    std::int64_t limit = 0;                            // bytes of a rank
    bool on_device = false;                            // as run_memory()
    std::vector<std::optional<double>> store_seconds;  // by rank, as ChoiceOptions
  };

  // `programs` are those of `run`. Borrows run and graphs.
  LayerSearch(PlannedRun& run,
              const RunPrograms& programs,
              const RunGraphs& graphs,
              Options options);

  // The rules become the plan's.
  void search();

  // Where nothing that was tried fits, ranks also compute sums over ranks again.
  void repeat_sums();

  // What ranks need whose layers keep the least and store nothing, or all that they may. The rules
  // become these.
  std::vector<std::int64_t> compile_least();
  std::vector<std::int64_t> compile_smallest();

  // Of what was chosen, by rank.
  const std::vector<std::int64_t>& bytes() const { return bytes_; }

  RankSearch& rank(std::size_t i) { return ranks_[i]; }

  // Bytes of ranks that keep least and store nothing.
  const std::vector<std::int64_t>& least() const { return least_; }

  // The last that were compiled: those of the plan's rules. None where these were the run's.
  std::vector<Program> take_steps() { return std::move(steps_); }

  // Of each pipeline rank with these steps.
  std::vector<std::int64_t> bytes_with(const std::vector<Program>& steps) const;

 private:
  struct Others {
    std::int64_t validation = 0;  // in the same arena
    std::int64_t beside = 0;      // the arena
  };

  bool is_done() const { return std::ranges::all_of(ranks_, &RankSearch::is_done); }

  void look_around();
  void learn_of_others(const RunPrograms& programs);
  std::int64_t host_bytes(const Program& step) const;

  // Bytes of each pipeline rank with what ranks propose.
  std::vector<std::int64_t> compiled();

  template <class Learn>
  void for_each_compiled(const Learn& learn);

  PlannedRun& run_;
  Options options_;
  const RunGraphs& graphs_;
  std::vector<Others> others_;
  std::vector<Program> steps_;       // of the plan's rules; none before others were tried
  std::vector<std::int64_t> bytes_;  // with them
  std::vector<std::int64_t> least_;
  std::vector<RecomputeRule> base_;  // by layer, as the run says
  std::vector<RankSearch> ranks_;
};

}  // namespace tessera
