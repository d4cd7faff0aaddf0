#include "tessera/actions/timeline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "tessera/actions/as_index.h"
#include "tessera/actions/run_order.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

void require_tick_count(double ticks) {
  TESSERA_REQUIRE(std::isfinite(ticks) && ticks >= 0.0,
                  ErrorCode::kInvalidArgument,
                  "a cost of {} ticks, expected a number of at least 0",
                  ticks);
}

void require_costs(const ActionTable& table, std::span<const ActionCosts> costs, double hop) {
  TESSERA_REQUIRE(costs.size() == as_index(table.stages),
                  ErrorCode::kInvalidArgument,
                  "costs of {} stages, the table has {}",
                  costs.size(),
                  table.stages);
  for (const ActionCosts& stage : costs) {
    require_ticks(stage);
  }
  require_tick_count(hop);
}

// Counts what is held along a row.
class HeldCount {
 public:
  void add(ActionKind kind) {
    switch (kind) {
      case ActionKind::kForward:
        ++forwards_;
        break;
      case ActionKind::kBackward:
        --forwards_;
        break;
      case ActionKind::kInputGradient:
        --forwards_;
        ++weight_gradients_;
        break;
      case ActionKind::kWeightGradient:
        --weight_gradients_;
        break;
    }
    peak_.forwards = std::max(peak_.forwards, forwards_);
    peak_.weight_gradients = std::max(peak_.weight_gradients, weight_gradients_);
  }

  const PeakHeld& peak() const { return peak_; }

 private:
  std::int64_t forwards_ = 0;
  std::int64_t weight_gradients_ = 0;
  PeakHeld peak_;
};

void count_held(const ActionTable& table, Timeline& timeline) {
  std::vector<HeldCount> stages(as_index(table.stages));
  for (const std::vector<StageAction>& row : table.rows) {
    HeldCount rank;
    for (const StageAction& action : row) {
      rank.add(action.kind);
      stages[as_index(action.stage)].add(action.kind);
    }
    timeline.held_by_rank.push_back(rank.peak());
  }
  for (const HeldCount& stage : stages) {
    timeline.held_by_stage.push_back(stage.peak());
  }
}

double mean_work(const Timeline& timeline) {
  return std::accumulate(timeline.work.begin(), timeline.work.end(), 0.0) /
         static_cast<double>(timeline.work.size());
}

}  // namespace

double duration(const ActionCosts& costs, ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return costs.forward;
    case ActionKind::kBackward:
      return costs.input_gradient + costs.weight_gradient;
    case ActionKind::kInputGradient:
      return costs.input_gradient;
    case ActionKind::kWeightGradient:
      return costs.weight_gradient;
  }
  fail(ErrorCode::kInternal, "unknown kind of action {}", static_cast<int>(kind));
}

double slice_duration(const ActionTable& table, const ActionCosts& costs, ActionKind kind) {
  return duration(costs, kind) / static_cast<double>(table.slices);
}

double total(const ActionCosts& costs) {
  return costs.forward + costs.input_gradient + costs.weight_gradient;
}

void require_ticks(const ActionCosts& costs) {
  require_tick_count(costs.forward);
  require_tick_count(costs.input_gradient);
  require_tick_count(costs.weight_gradient);
}

Timeline timeline(const ActionTable& table, std::span<const ActionCosts> costs, double hop) {
  require_costs(table, costs, hop);
  TableClock clock(table);
  Timeline result;
  result.makespan = clock.run(costs, hop);
  result.work.resize(table.rows.size());
  for (const std::vector<StageAction>& row : table.rows) {
    result.rows.emplace_back(row.size());
  }
  for (std::size_t i = 0; i < clock.order().size(); ++i) {
    const OrderedAction& action = clock.order()[i];
    const double ticks = slice_duration(table, costs[as_index(action.stage)], action.kind);
    const double end = clock.ends()[i];
    result.rows[as_index(action.rank)][as_index(action.position)] = {end - ticks, end};
    result.work[as_index(action.rank)] += ticks;
  }
  count_held(table, result);
  return result;
}

Timeline timeline(const ActionTable& table) {
  const std::vector<ActionCosts> equal(as_index(std::max<std::int64_t>(0, table.stages)));
  return timeline(table, equal);
}

double bubble(const Timeline& timeline, std::int64_t rank) {
  return timeline.makespan > 0.0 ? 1.0 - timeline.work.at(as_index(rank)) / timeline.makespan : 0.0;
}

double bubble(const Timeline& timeline) {
  return timeline.makespan > 0.0 ? 1.0 - mean_work(timeline) / timeline.makespan : 0.0;
}

double imbalance(const Timeline& timeline) {
  return timeline.makespan > 0.0
             ? (*std::ranges::max_element(timeline.work) - mean_work(timeline)) / timeline.makespan
             : 0.0;
}

}  // namespace tessera
