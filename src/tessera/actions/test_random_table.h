#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/actions/action_table.h"
#include "tessera/actions/as_index.h"
#include "tessera/base/random.h"

namespace tessera {

struct RandomTableOptions {
  std::int64_t ranks = 1;
  std::int64_t stages = 1;  // at least as many as ranks: each rank gets one
  std::int64_t microbatches = 1;
  std::int64_t slices = 1;
  bool rising = true;  // microbatches of a stage, in each of its kinds of action and in its sums
  bool splits = true;  // some backwards come as input gradient and weight gradient
};

// For property tests: builds a table by running it. One after another, any action that can run does
// so, wherever it is; the order of each rank is then one in which all ranks come to their end.
class RandomTableBuilder {
 public:
  RandomTableBuilder(std::uint64_t seed, const RandomTableOptions& options)
      : seed_(seed), options_(options) {
    table_.ranks = options.ranks;
    table_.stages = options.stages;
    table_.microbatches = options.microbatches;
    table_.slices = options.slices;
    table_.rows.resize(as_index(options.ranks));
  }

  ActionTable build() {
    place_stages();
    std::vector<StageAction> waiting = all_actions();
    while (!waiting.empty()) {
      std::vector<std::size_t> ready;
      for (std::size_t i = 0; i < waiting.size(); ++i) {
        if (can_run(waiting[i], waiting)) {
          ready.push_back(i);
        }
      }
      const std::size_t chosen = ready.at(as_index(draw(static_cast<std::int64_t>(ready.size()))));
      const StageAction action = waiting[chosen];
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(chosen));
      table_.rows[as_index(table_.rank_of_stage[as_index(action.stage)])].push_back(action);
    }
    return table_;
  }

 private:
  std::int64_t draw(std::int64_t below) {
    return static_cast<std::int64_t>(uniform(seed_, drawn_++) * static_cast<double>(below));
  }

  // A stage to each rank, the others anywhere, in any order.
  void place_stages() {
    for (std::int64_t stage = 0; stage < options_.stages; ++stage) {
      table_.rank_of_stage.push_back(stage < options_.ranks ? stage : draw(options_.ranks));
    }
    for (std::int64_t stage = options_.stages - 1; stage > 0; --stage) {
      std::swap(table_.rank_of_stage[as_index(stage)],
                table_.rank_of_stage[as_index(draw(stage + 1))]);
    }
  }

  std::vector<StageAction> all_actions() {
    using enum ActionKind;
    std::vector<StageAction> actions;
    for (std::int64_t stage = 0; stage < options_.stages; ++stage) {
      for (std::int64_t i = 0; i < options_.microbatches * options_.slices; ++i) {
        const std::int64_t microbatch = i / options_.slices;
        const std::int64_t slice = i % options_.slices;
        actions.push_back({stage, kForward, microbatch, slice});
        if (options_.splits && draw(2) == 0) {
          actions.push_back({stage, kInputGradient, microbatch, slice});
          actions.push_back({stage, kWeightGradient, microbatch, slice});
        } else {
          actions.push_back({stage, kBackward, microbatch, slice});
        }
      }
    }
    return actions;
  }

  static bool is_backward(ActionKind kind) {
    return kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
  }

  static bool sums_gradients(ActionKind kind) {
    return kind == ActionKind::kBackward || kind == ActionKind::kWeightGradient;
  }

  // Whether `action` has to come after `other`.
  bool comes_after(const StageAction& action, const StageAction& other) const {
    using enum ActionKind;
    const bool same_sum = (action.kind == other.kind) ||
                          (is_backward(action.kind) && is_backward(other.kind)) ||
                          (sums_gradients(action.kind) && sums_gradients(other.kind));
    if (action.stage == other.stage && action.microbatch == other.microbatch) {
      return action.slice == other.slice ? action.kind > other.kind
             : action.kind == kForward   ? other.kind == kForward && action.slice > other.slice
                                         : same_sum && action.slice < other.slice;
    }
    if (action.microbatch == other.microbatch) {
      return action.slice == other.slice && ((action.kind == kForward && other.kind == kForward &&
                                              action.stage == other.stage + 1) ||
                                             (is_backward(action.kind) && is_backward(other.kind) &&
                                              action.stage + 1 == other.stage));
    }
    return options_.rising && action.stage == other.stage && same_sum &&
           action.microbatch > other.microbatch;
  }

  bool can_run(const StageAction& action, const std::vector<StageAction>& waiting) const {
    return std::ranges::none_of(
        waiting, [&](const StageAction& other) { return comes_after(action, other); });
  }

  std::uint64_t seed_;
  RandomTableOptions options_;
  std::uint64_t drawn_ = 0;
  ActionTable table_;
};

// A legal table, a pure function of the seed.
inline ActionTable random_table(std::uint64_t seed, const RandomTableOptions& options) {
  return RandomTableBuilder(seed, options).build();
}

}  // namespace tessera
