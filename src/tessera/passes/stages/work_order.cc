#include "tessera/passes/stages/work_order.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "tessera/actions/as_index.h"
#include "tessera/actions/run_order.h"

namespace tessera {
namespace {

// One order of all actions of a table: by the times at which they start if all cost alike.
class GlobalOrder {
 public:
  explicit GlobalOrder(const ActionTable& table) : clock_(table) {
    const std::vector<ActionCosts> costs(as_index(table.stages));
    clock_.run(costs, 0.0);
    std::vector<double> starts;
    for (std::size_t i = 0; i < actions().size(); ++i) {
      starts.push_back(clock_.ends()[i] - duration(costs[0], actions()[i].kind));
    }
    std::vector<std::size_t> order(starts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return starts[i]; });
    places_.resize(order.size());
    for (std::size_t place = 0; place < order.size(); ++place) {
      places_[order[place]] = place;
    }
  }

  std::span<const OrderedAction> actions() const { return clock_.order(); }

  std::size_t place(std::size_t action) const { return places_[action]; }

  // The actions of each rank, by their places in its row.
  std::vector<std::vector<std::size_t>> rows(const ActionTable& table) const {
    std::vector<std::vector<std::size_t>> rows;
    for (const std::vector<StageAction>& row : table.rows) {
      rows.emplace_back(row.size());
    }
    for (std::size_t i = 0; i < actions().size(); ++i) {
      const OrderedAction& action = actions()[i];
      rows[as_index(action.rank)][as_index(action.position)] = i;
    }
    return rows;
  }

 private:
  TableClock clock_;
  std::vector<std::size_t> places_;
};

Action action_of(ActionKind kind) {
  return kind == ActionKind::kForward          ? Action::kForward
         : kind == ActionKind::kWeightGradient ? Action::kWeightGradient
                                               : Action::kBackward;
}

// A receive, and before which action of the row it is called.
struct PlacedReceive {
  std::size_t sent = 0;  // where the action that sends is in the order of all
  std::size_t before = 0;
  WorkStep step;
};

void sort_by_sends(std::vector<PlacedReceive>& receives) {
  std::ranges::sort(receives, {}, &PlacedReceive::sent);
}

// By place in the row.
std::vector<std::vector<WorkStep>> place_receives(const GlobalOrder& order,
                                                  const std::vector<std::size_t>& row,
                                                  const std::vector<WorkStep>& works) {
  std::map<Action, std::vector<PlacedReceive>> by_action;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const OrderedAction& reader = order.actions()[row[i]];
    if (!reader.hops) {
      continue;
    }
    const std::size_t sent = order.place(as_index(reader.waits_for));
    const auto after = std::ranges::partition_point(
        row, [&](std::size_t action) { return order.place(action) < sent; });
    WorkStep step = works[i];
    step.code.kind = CodeKind::kReceive;
    by_action[step.code.action].push_back(
        {.sent = sent,
         .before = std::min(static_cast<std::size_t>(after - row.begin()), i - (i > 0 ? 1 : 0)),
         .step = step});
  }
  std::vector<PlacedReceive> all;
  for (auto& [action, receives] : by_action) {
    sort_by_sends(receives);
    for (std::size_t i = receives.size(); i-- > 1;) {
      receives[i - 1].before = std::min(receives[i - 1].before, receives[i].before);
    }
    all.insert(all.end(), receives.begin(), receives.end());
  }
  sort_by_sends(all);
  std::vector<std::vector<WorkStep>> before(row.size());
  for (const PlacedReceive& receive : all) {
    before[receive.before].push_back(receive.step);
  }
  return before;
}

// Of one rank, whose row this is in the order of all.
std::vector<WorkStep> work_order(const ActionTable& table,
                                 std::int64_t rank,
                                 const GlobalOrder& global,
                                 const std::vector<std::size_t>& row) {
  const std::vector<std::int64_t> own = stages_of_rank(table, rank);
  const std::vector<StageAction>& actions = table.rows[as_index(rank)];
  const bool splits = std::ranges::any_of(actions, [](const StageAction& action) {
    return action.kind == ActionKind::kWeightGradient;
  });
  std::vector<WorkStep> works;
  for (const StageAction& action : actions) {
    const auto chunk = std::ranges::find(own, action.stage) - own.begin();
    works.push_back(
        {.code = {.action = action_of(action.kind), .chunk = static_cast<std::int32_t>(chunk)},
         .microbatch = static_cast<std::int32_t>(action.microbatch)});
  }
  const auto receives = place_receives(global, row, works);
  std::vector<WorkStep> order;
  for (std::size_t i = 0; i < works.size(); ++i) {
    order.insert(order.end(), receives[i].begin(), receives[i].end());
    order.push_back(works[i]);
    if (splits && actions[i].kind == ActionKind::kBackward) {
      order.push_back(works[i]);
      order.back().code.action = Action::kWeightGradient;
    }
  }
  return order;
}

}  // namespace

std::vector<std::vector<WorkStep>> work_orders(const ActionTable& table) {
  const GlobalOrder global(table);
  const std::vector<std::vector<std::size_t>> rows = global.rows(table);
  std::vector<std::vector<WorkStep>> orders;
  for (std::int64_t rank = 0; rank < table.ranks; ++rank) {
    orders.push_back(work_order(table, rank, global, rows[as_index(rank)]));
  }
  return orders;
}

}  // namespace tessera
