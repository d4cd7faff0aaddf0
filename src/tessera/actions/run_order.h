#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tessera/actions/action_table.h"
#include "tessera/actions/table_places.h"
#include "tessera/actions/timeline.h"

namespace tessera {

// An action of a table with what it waits for, besides the action before it on its rank.
struct OrderedAction {
  std::int32_t rank = 0;
  std::int32_t position = 0;  // in its row
  std::int32_t stage = 0;
  ActionKind kind = ActionKind::kForward;
  std::int32_t waits_for = -1;  // an index in the order; -1: nothing
  bool hops = false;            // from another rank
};

// All actions of a table, each after those that it waits for. A forward waits for that of the stage
// before, a backward or input gradient for that of the stage after.
// Errors: kInvalidConfig for ranks that wait for each other, naming the shortest cycle among those
// in which a rank stands still ("rank 1 waits at 4:2B0 for 3B0", 4: the fourth action of its row),
// and where the first of them is; kInvalidArgument for an action that waits for one that the table
// lacks.
std::vector<OrderedAction> run_order(const ActionTable& table, const TablePlaces& in_text = {});

// Runs one table with many costs. The table outlives it.
class TableClock {
 public:
  explicit TableClock(const ActionTable& table);

  // The time of the last end. `costs`: by stage. As soon as that is sure to be later than `limit`,
  // another time later than `limit`, which leaves ends() unfinished.
  double run(std::span<const ActionCosts> costs,
             double hop,
             double limit = std::numeric_limits<double>::infinity());

  std::span<const OrderedAction> order() const { return order_; }

  // Of the last run, as order().
  std::span<const double> ends() const { return ends_; }

 private:
  struct RankClock {
    double free_at = 0.0;
    double least_end = 0.0;  // if it waits no more
  };

  const ActionTable& table_;
  std::vector<OrderedAction> order_;
  std::vector<double> ends_;
  std::vector<RankClock> ranks_;
};

}  // namespace tessera
