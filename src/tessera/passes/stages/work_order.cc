#include "tessera/passes/stages/work_order.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <span>
#include <utility>

#include "tessera/actions/as_index.h"
#include "tessera/actions/run_order.h"

namespace tessera {
namespace {

// Whose edges say which actions come after which: of a row the next one, and those that wait.
class ActionGraph {
 public:
  // `places`: of each action, in an order that the edges allow.
  ActionGraph(std::span<const OrderedAction> actions,
              const std::vector<std::vector<std::size_t>>& rows,
              std::span<const std::size_t> places)
      : next_(actions.size()),
        num_before_(actions.size(), 0),
        places_(places.begin(), places.end()),
        at_(actions.size()),
        is_after_(actions.size(), false) {
    for (std::size_t action = 0; action < places.size(); ++action) {
      at_[places[action]] = action;
    }
    for (const std::vector<std::size_t>& row : rows) {
      for (std::size_t i = 1; i < row.size(); ++i) {
        add(row[i - 1], row[i]);
      }
    }
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].waits_for >= 0) {
        add(as_index(actions[i].waits_for), i);
      }
    }
  }

  // Has `before` come before `after`, unless that makes a circle.
  void add_without_circle(std::size_t before, std::size_t after) {
    if (places_[before] < places_[after] || move_after(after, before)) {
      add(before, after);
    }
  }

  // By action, its place in an order of all: that of `places` where the edges allow it.
  std::vector<std::size_t> order_near(std::span<const std::size_t> places) const {
    std::vector<std::size_t> waits = num_before_;
    using Ready = std::pair<std::size_t, std::size_t>;  // place and action
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    for (std::size_t action = 0; action < waits.size(); ++action) {
      if (waits[action] == 0) {
        ready.emplace(places[action], action);
      }
    }
    std::vector<std::size_t> ordered(places.size());
    for (std::size_t place = 0; !ready.empty(); ++place) {
      const std::size_t action = ready.top().second;
      ready.pop();
      ordered[action] = place;
      for (const std::size_t after : next_[action]) {
        if (--waits[after] == 0) {
          ready.emplace(places[after], after);
        }
      }
    }
    return ordered;
  }

 private:
  void add(std::size_t before, std::size_t after) {
    next_[before].push_back(after);
    ++num_before_[after];
  }

  // Moves `action`, and what comes after it, to after `other`, which has a later place: false where
  // `other` is one of those. What lies between the two alone is looked at.
  bool move_after(std::size_t action, std::size_t other) {
    const std::size_t begin = places_[action];
    const std::size_t end = places_[other];
    std::vector<std::size_t> open = {action};
    is_after_[action] = true;
    while (!open.empty()) {
      const std::size_t from = open.back();
      open.pop_back();
      for (const std::size_t after : next_[from]) {
        if (places_[after] <= end && !is_after_[after]) {
          is_after_[after] = true;
          open.push_back(after);
        }
      }
    }
    const bool moves = !is_after_[other];
    const auto window = std::span(at_).subspan(begin, end + 1 - begin);
    if (moves) {
      std::ranges::stable_partition(window, [&](std::size_t i) { return !is_after_[i]; });
    }
    for (std::size_t place = begin; place <= end; ++place) {
      places_[at_[place]] = place;
      is_after_[at_[place]] = false;
    }
    return moves;
  }

  std::vector<std::vector<std::size_t>> next_;
  std::vector<std::size_t> num_before_;
  std::vector<std::size_t> places_;  // by action, in one order that the edges allow
  std::vector<std::size_t> at_;      // by place, the action
  std::vector<bool> is_after_;       // by action, within move_after()
};

// One order of all actions of a table: by the times at which they start if all cost alike.
class GlobalOrder {
 public:
  explicit GlobalOrder(const ActionTable& table) : clock_(table), rows_(rows_of(table)) {
    const std::vector<ActionCosts> costs(as_index(table.stages));
    clock_.run(costs, 0.0);
    std::vector<double> starts;
    for (std::size_t i = 0; i < actions().size(); ++i) {
      starts.push_back(clock_.ends()[i] - slice_duration(table, costs[0], actions()[i].kind));
    }
    std::vector<std::size_t> order(starts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return starts[i]; });
    places_.resize(order.size());
    for (std::size_t place = 0; place < order.size(); ++place) {
      places_[order[place]] = place;
    }
  }

  // Moves works that send to before the one ahead of their reader, wherever they do not wait for
  // that one: a receive that stands right after its send is then ahead of its reader.
  void send_ahead_of_readers() {
    ActionGraph graph(actions(), rows_, places_);
    for (const std::vector<std::size_t>& row : rows_) {
      for (std::size_t i = 1; i < row.size(); ++i) {
        const OrderedAction& reader = actions()[row[i]];
        if (reader.hops) {
          graph.add_without_circle(as_index(reader.waits_for), row[i - 1]);
        }
      }
    }
    places_ = graph.order_near(places_);
  }

  std::span<const OrderedAction> actions() const { return clock_.order(); }

  std::size_t place(std::size_t action) const { return places_[action]; }

  // The actions of each rank, by their places in its row.
  const std::vector<std::vector<std::size_t>>& rows() const { return rows_; }

 private:
  std::vector<std::vector<std::size_t>> rows_of(const ActionTable& table) const {
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

  TableClock clock_;
  std::vector<std::vector<std::size_t>> rows_;
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
                                                  const std::vector<WorkStep>& works,
                                                  TransferLaunch launch) {
  std::map<Action, std::vector<PlacedReceive>> by_action;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const OrderedAction& reader = order.actions()[row[i]];
    if (!reader.hops) {
      continue;
    }
    const std::size_t sent = order.place(as_index(reader.waits_for));
    const auto after = std::ranges::partition_point(
        row, [&](std::size_t action) { return order.place(action) < sent; });
    const std::size_t last = launch == TransferLaunch::kInOneQueue || i == 0 ? i : i - 1;
    WorkStep step = works[i];
    step.code.kind = CodeKind::kReceive;
    by_action[step.code.action].push_back(
        {.sent = sent,
         .before = std::min(static_cast<std::size_t>(after - row.begin()), last),
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

// Of one rank.
std::vector<WorkStep> work_order(const ActionTable& table,
                                 std::int64_t rank,
                                 const GlobalOrder& global,
                                 TransferLaunch launch) {
  const std::vector<std::int64_t> own = stages_of_rank(table, rank);
  const std::vector<StageAction>& actions = table.rows[as_index(rank)];
  const bool splits = std::ranges::any_of(actions, [](const StageAction& action) {
    return action.kind == ActionKind::kWeightGradient;
  });
  std::vector<WorkStep> works;
  for (const StageAction& action : actions) {
    const auto stage = std::ranges::find(own, action.stage) - own.begin();
    const std::int64_t chunk = stage * table.slices + action.slice;
    works.push_back(
        {.code = {.action = action_of(action.kind), .chunk = static_cast<std::int32_t>(chunk)},
         .microbatch = static_cast<std::int32_t>(action.microbatch)});
  }
  const auto receives = place_receives(global, global.rows()[as_index(rank)], works, launch);
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

std::vector<std::vector<WorkStep>> work_orders(const ActionTable& table, TransferLaunch launch) {
  GlobalOrder global(table);
  if (launch == TransferLaunch::kInOneQueue) {
    global.send_ahead_of_readers();
  }
  std::vector<std::vector<WorkStep>> orders;
  for (std::int64_t rank = 0; rank < table.ranks; ++rank) {
    orders.push_back(work_order(table, rank, global, launch));
  }
  return orders;
}

}  // namespace tessera
