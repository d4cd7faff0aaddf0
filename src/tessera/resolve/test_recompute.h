#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/config.h"
#include "tessera/passes/memory/recompute_choices.h"
#include "tessera/plan/compile.h"
#include "tessera/resolve/kernel_seconds.h"
#include "tessera/resolve/layer_search.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/run_memory.h"

namespace tessera {

// For tests and benchmarks of memory.recompute = "auto".

// A small run, and what these keys change of it.
inline PlannedRun small_run(const std::vector<std::string>& more) {
  RunConfig config;
  std::vector<std::string> overrides = {"--model.dim=32",
                                        "--model.heads=4",
                                        "--model.kv_heads=2",
                                        "--model.ffn=96",
                                        "--model.vocab=64",
                                        "--data.sequence_length=64",
                                        "--run.threads=1",
                                        "--run.device=cpu"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  for (const std::string& text : overrides) {
    apply_override(config, text);
  }
  config = resolve(std::move(config), ConfigUse::kPlan);
  return plan_run(config, resolve_model(config));
}

// What a way to keep, repeat and store values comes to.
struct RecomputeOutcome {
  std::int64_t bytes = 0;  // of a rank
  double repeated = 0.0;   // over a microbatch's work
  double added = 0.0;      // likewise, with what it costs to store
};

// All combinations of the choices of each layer, at most so many of each from the least to all, of
// a run without a pipeline, with what their programs need.
inline std::vector<RecomputeOutcome> all_outcomes(
    PlannedRun run,
    std::size_t most = SIZE_MAX,
    std::optional<double> store_seconds = std::nullopt) {
  if (store_seconds) {
    run.plan.passes.activations = run.may_move.activations;
    run.plan.passes.all_activations = false;
  }
  const NodeSeconds seconds = kernel_seconds({}, run.plan.dtype);
  const Graph graph = graphs_before_recompute(run.plan, run.target).front();
  std::vector<LayerChoices> layers =
      recompute_choices(graph, seconds, {.store_seconds = store_seconds});
  for (LayerChoices& layer : layers) {
    const std::size_t last = layer.front.size() - 1;
    for (std::size_t i = 0; last >= most && i < most; ++i) {
      layer.front[i] = layer.front[i * last / (most - 1)];
    }
    layer.front.resize(std::min(layer.front.size(), most));
  }
  const double whole = microbatch_seconds(graph, seconds);
  const RunPrograms all_kept = compile_run(run.plan, run.target);
  const std::int64_t beside = run_memory(run, all_kept).total() - all_kept[0].arena_bytes();
  std::vector<RecomputeOutcome> outcomes;
  std::vector<std::size_t> chosen(layers.size(), 0);
  for (bool is_more = true; is_more;) {
    run.plan.passes.recompute.clear();
    RecomputeOutcome outcome;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const KeptChoice& choice = layers[i].front[chosen[i]];
      if (chosen[i] + 1 < layers[i].front.size()) {
        const std::int64_t layer = layers[i].layer;
        run.plan.passes.recompute.push_back(
            {.first = layer, .end = layer + 1, .keep = choice.keep, .store = choice.store});
      }
      outcome.repeated += choice.repeated / whole;
      outcome.added += choice.seconds / whole;
    }
    outcome.bytes = try_steps({graph}, run.plan, run.target)[0].arena_bytes + beside;
    outcomes.push_back(outcome);
    is_more = false;
    for (std::size_t i = 0; i < layers.size() && !is_more; ++i) {
      is_more = ++chosen[i] < layers[i].front.size();
      chosen[i] = is_more ? chosen[i] : 0;
    }
  }
  return outcomes;
}

// The least that a step takes longer within a limit.
inline double best_within(const std::vector<RecomputeOutcome>& outcomes, std::int64_t limit) {
  double best = 1.0;
  for (const RecomputeOutcome& outcome : outcomes) {
    best = outcome.bytes <= limit ? std::min(best, outcome.added) : best;
  }
  return best;
}

}  // namespace tessera
