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
  std::int32_t most = 0;
  for (const OrderedAction& action : order) {
    most = std::max(most, action.rank);
  }
  return static_cast<std::size_t>(most) + 1;
}

// An action of a stage.
struct Turn {
  double seconds = 0.0;
  double ahead = 0.0;
  BesideSeconds beside = {};
  bool ends_gradients = false;  // of weights, in this stage
};

void add(BesideSeconds& sum, const BesideSeconds& more) {
  sum.gathers += more.gathers;
  sum.reductions += more.reductions;
}

Turn turn_of(ActionKind kind, const StageSeconds& stage, Counts& counts, std::int64_t calls) {
  Turn turn;
  if (kind == ActionKind::kForward) {
    turn = {.seconds = stage.forward.of(counts.forward++, calls),
            .ahead = stage.forward_ahead,
            .beside = stage.beside_forward};
  }
  if (kind == ActionKind::kInputGradient || kind == ActionKind::kBackward) {
    turn = {.seconds = stage.backward.of(counts.backward++, calls),
            .ahead = stage.backward_ahead,
            .beside = stage.beside_backward};
  }
  if (kind == ActionKind::kWeightGradient || kind == ActionKind::kBackward) {
    turn.seconds += stage.weight.of(counts.weight++, calls);
    add(turn.beside, stage.beside_weight);
    turn.ends_gradients = counts.weight == calls;
  }
  return turn;
}

// What the streams of a rank are at, in a row of actions.
class RankClock {
 public:
  explicit RankClock(double begin) : now_(begin) {}

  // `there`: when what it waits for is.
  void act(const Turn& turn, const StageSeconds& stage, double there, std::int64_t overlap_layers) {
    const auto window = static_cast<double>(overlap_layers);
    const double layer = stage.layers > 0.0 ? turn.seconds / stage.layers : 0.0;
    const double beyond = std::max(0.0, stage.layers - window - 1.0);  // layers after the window
    const double gathered = std::max(beside_, now_ - lead_) + turn.beside.gathers;
    const double fence = beside_;  // of what the action before has left
    now_ = std::max({now_ + turn.seconds,
                     there + std::max(0.0, turn.seconds - turn.ahead),
                     turn.beside.gathers > 0.0 ? gathered : 0.0,
                     fence_ > 0.0 ? fence + beyond * layer : 0.0});
    beside_ = std::max(beside_, turn.beside.gathers > 0.0 ? gathered : 0.0);
    lead_ = window * layer;
    fence_ = turn.beside.reductions;
    if (fence_ > 0.0) {
      const double begin = std::max(beside_, now_ - turn.seconds);
      const double each = stage.layers > 0.0 ? fence_ / stage.layers : 0.0;
      now_ = std::max(now_, begin + beyond * each);
      beside_ = begin + fence_;
    }
    if (turn.ends_gradients) {
      reduced_ = std::max(std::max(reduced_, now_ - turn.seconds) + stage.reduced,
                          now_ + stage.left_after);
    }
  }

  double now() const { return now_; }

  double reduced() const { return std::max(reduced_, beside_); }

 private:
  double now_ = 0.0;
  double beside_ = 0.0;   // the other stream
  double lead_ = 0.0;     // before the end of the last action, when the next one's gathers begin
  double fence_ = 0.0;    // of that, the reductions which the next one waits for
  double reduced_ = 0.0;  // the other stream, with what the last calls alone reduce
};

}  // namespace

PipelineEnds pipeline_ends(std::span<const OrderedAction> order,
                           std::span<const StageSeconds> stages,
                           const PipelineRun& run) {
  std::vector<RankClock> ranks(num_ranks(order), RankClock(0.0));
  std::vector<Counts> counts(stages.size());
  std::vector<double> ends;
  ends.reserve(order.size());
  for (const OrderedAction& action : order) {
    const auto at = static_cast<std::size_t>(action.stage);
    RankClock& rank = ranks[static_cast<std::size_t>(action.rank)];
    if (action.stage == 0 && counts[at].forward == 0) {
      rank = RankClock(run.first_wait);
    }
    const Turn turn = turn_of(action.kind, stages[at], counts[at], run.calls);
    const double there = action.waits_for < 0 ? 0.0
                                              : ends[static_cast<std::size_t>(action.waits_for)] +
                                                    (action.hops ? run.hop : 0.0);
    rank.act(turn, stages[at], there, run.overlap_layers);
    ends.push_back(rank.now());
  }
  PipelineEnds result;
  for (const RankClock& rank : ranks) {
    result.work.push_back(rank.now());
    result.reduced.push_back(rank.reduced());
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
