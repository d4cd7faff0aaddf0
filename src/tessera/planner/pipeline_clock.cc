#include "tessera/planner/pipeline_clock.h"

#include <algorithm>

namespace tessera {
namespace {

// How often a stage has done each part of its microbatches.
struct Counts {
  std::int64_t forward = 0;
  std::int64_t backward = 0;
  std::int64_t weight = 0;
};

std::size_t num_ranks(std::span<const OrderedAction> order) {
  std::int32_t most = -1;
  for (const OrderedAction& action : order) {
    most = std::max(most, action.rank);
  }
  return static_cast<std::size_t>(most + 1);
}

struct Turn {
  double seconds = 0.0;
  double ahead = 0.0;
  bool ends_gradients = false;  // of weights, in this stage
};

Turn turn_of(ActionKind kind, const StageSeconds& stage, Counts& counts, std::int64_t calls) {
  Turn turn;
  if (kind == ActionKind::kForward) {
    turn = {.seconds = stage.forward.of(counts.forward++, calls), .ahead = stage.forward_ahead};
  }
  if (kind == ActionKind::kInputGradient || kind == ActionKind::kBackward) {
    turn = {.seconds = stage.backward.of(counts.backward++, calls), .ahead = stage.backward_ahead};
  }
  if (kind == ActionKind::kWeightGradient || kind == ActionKind::kBackward) {
    turn.seconds += stage.weight.of(counts.weight++, calls);
    turn.ends_gradients = counts.weight == calls;
  }
  return turn;
}

}  // namespace

PipelineEnds pipeline_ends(std::span<const OrderedAction> order,
                           std::span<const StageSeconds> stages,
                           std::int64_t calls,
                           double hop,
                           double first_wait) {
  const std::size_t ranks = num_ranks(order);
  PipelineEnds result = {.work = std::vector<double>(ranks, 0.0),
                         .reduced = std::vector<double>(ranks, 0.0)};
  std::vector<Counts> counts(stages.size());
  std::vector<double> ends;
  ends.reserve(order.size());
  for (const OrderedAction& action : order) {
    const auto at = static_cast<std::size_t>(action.stage);
    const auto rank = static_cast<std::size_t>(action.rank);
    const StageSeconds& stage = stages[at];
    const bool is_first = action.stage == 0 && counts[at].forward == 0;
    const Turn turn = turn_of(action.kind, stage, counts[at], calls);
    double& now = result.work[rank];
    now = std::max(now, is_first ? first_wait : 0.0) + turn.seconds;
    if (action.waits_for >= 0) {
      const double there =
          ends[static_cast<std::size_t>(action.waits_for)] + (action.hops ? hop : 0.0);
      now = std::max(now, there + std::max(0.0, turn.seconds - turn.ahead));
    }
    ends.push_back(now);
    if (turn.ends_gradients) {
      double& reduced = result.reduced[rank];
      reduced =
          std::max(std::max(reduced, now - turn.seconds) + stage.reduced, now + stage.left_after);
    }
  }
  return result;
}

std::vector<double> pipeline_bytes(std::span<const OrderedAction> order,
                                   std::span<const StageBytes> stages) {
  const std::size_t ranks = num_ranks(order);
  std::vector<double> held(ranks, 0.0);
  std::vector<double> most(ranks, 0.0);
  for (const OrderedAction& action : order) {
    const auto rank = static_cast<std::size_t>(action.rank);
    const StageBytes& stage = stages[static_cast<std::size_t>(action.stage)];
    double& now = held[rank];
    const bool is_forward = action.kind == ActionKind::kForward;
    const bool is_weight = action.kind == ActionKind::kWeightGradient;
    const double extra = is_forward ? stage.in_forward : is_weight ? 0.0 : stage.in_backward;
    most[rank] = std::max(most[rank], now + extra);
    if (is_forward) {
      now += stage.kept;
    } else if (is_weight) {
      now -= stage.left;
    } else {
      now += (action.kind == ActionKind::kInputGradient ? stage.left : 0.0) - stage.kept;
    }
    most[rank] = std::max(most[rank], now);
  }
  return most;
}

}  // namespace tessera
