#include "tessera/actions/run_order.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "tessera/actions/as_index.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::int32_t kNone = -1;

// An action by rank and position.
struct Position {
  std::int32_t rank = kNone;
  std::int32_t index = 0;
};

// Finds the forward and the backward or input gradient of each stage and microbatch.
class Positions {
 public:
  explicit Positions(const ActionTable& table) : table_(table) {
    const std::int64_t actions = num_actions(table);
    TESSERA_REQUIRE(table.stages >= 0 && table.stages <= actions && table.microbatches >= 0 &&
                        table.microbatches <= actions && table.slices >= 1 &&
                        table.slices <= actions + 1 &&
                        table.stages * table.microbatches <= actions / table.slices &&
                        table.rank_of_stage.size() == as_index(table.stages),
                    ErrorCode::kInvalidArgument,
                    "a table of {} stages and {} microbatches has {} actions",
                    table.stages,
                    table.microbatches,
                    actions);
    const std::int64_t places = table.stages * table.microbatches * table.slices;
    forwards_.resize(as_index(places));
    backwards_.resize(as_index(places));
    for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
      for (std::size_t i = 0; i < table.rows[rank].size(); ++i) {
        const StageAction& action = table.rows[rank][i];
        if (action.kind != ActionKind::kWeightGradient) {
          at(action) = {static_cast<std::int32_t>(rank), static_cast<std::int32_t>(i)};
        }
      }
    }
  }

  // What `action` waits for on any rank, besides the actions before it in its row.
  std::optional<Position> awaited(const StageAction& action) {
    std::optional<StageAction> other;
    if (action.kind == ActionKind::kForward && action.stage > 0) {
      other = {action.stage - 1, action.kind, action.microbatch, action.slice};
    } else if ((action.kind == ActionKind::kBackward ||
                action.kind == ActionKind::kInputGradient) &&
               action.stage + 1 < table_.stages) {
      other = {action.stage + 1, ActionKind::kBackward, action.microbatch, action.slice};
    }
    if (!other) {
      return std::nullopt;
    }
    const Position position = at(*other);
    TESSERA_REQUIRE(position.rank != kNone,
                    ErrorCode::kInvalidArgument,
                    "{} waits for {}, which the table lacks",
                    to_string(action),
                    to_string(*other));
    return position;
  }

 private:
  Position& at(const StageAction& action) {
    TESSERA_REQUIRE(action.stage >= 0 && action.stage < table_.stages && action.microbatch >= 0 &&
                        action.microbatch < table_.microbatches && action.slice >= 0 &&
                        action.slice < table_.slices,
                    ErrorCode::kInvalidArgument,
                    "{} in a table of {} stages, {} microbatches and {} slices",
                    to_string(action),
                    table_.stages,
                    table_.microbatches,
                    table_.slices);
    const std::size_t place = as_index(
        (action.stage * table_.microbatches + action.microbatch) * table_.slices + action.slice);
    return action.kind == ActionKind::kForward ? forwards_[place] : backwards_[place];
  }

  const ActionTable& table_;
  std::vector<Position> forwards_;
  std::vector<Position> backwards_;
};

// An action that waits, as found on the way to a cycle.
struct Wait {
  Position waiting;
  Position awaited;
  std::size_t before = 0;  // the wait that led here; its own index: none
};

// Finds a cycle where no rank can go on: rank r stands at position heads[r].
class CycleSearch {
 public:
  CycleSearch(const ActionTable& table, Positions& positions, std::span<const std::int32_t> heads)
      : table_(table), positions_(positions), heads_(heads) {}

  std::vector<Wait> shortest() {
    std::vector<Wait> best;
    for (std::size_t rank = 0; rank < heads_.size(); ++rank) {
      if (as_index(heads_[rank]) < table_.rows[rank].size()) {
        std::vector<Wait> cycle = from(static_cast<std::int32_t>(rank));
        if (best.empty() || (!cycle.empty() && cycle.size() < best.size())) {
          best = std::move(cycle);
        }
      }
    }
    return best;
  }

 private:
  // Breadth first, from the action at which `rank` stands back to the rank: an awaited action
  // stands after every action of its rank that has not run, so that it waits for what these wait
  // for.
  std::vector<Wait> from(std::int32_t rank) {
    std::vector<std::int32_t> looked_at(heads_.begin(), heads_.end());
    std::vector<Wait> waits;
    const Position head = {rank, heads_[as_index(rank)]};
    if (const std::optional<Position> awaited = positions_.awaited(action(head))) {
      waits.push_back({head, *awaited, 0});
    }
    for (std::size_t i = 0; i < waits.size(); ++i) {
      const Position goal = waits[i].awaited;
      if (goal.rank == rank) {
        return path_to(waits, i);
      }
      std::int32_t& next = looked_at[as_index(goal.rank)];
      for (; next <= goal.index; ++next) {
        const Position here = {goal.rank, next};
        const std::optional<Position> awaited = positions_.awaited(action(here));
        if (awaited && awaited->index >= heads_[as_index(awaited->rank)]) {
          waits.push_back({here, *awaited, i});
        }
      }
    }
    return {};
  }

  static std::vector<Wait> path_to(const std::vector<Wait>& waits, std::size_t last) {
    std::vector<Wait> path = {waits[last]};
    while (waits[last].before != last) {
      last = waits[last].before;
      path.push_back(waits[last]);
    }
    std::ranges::reverse(path);
    return path;
  }

  const StageAction& action(Position position) const {
    return table_.rows[as_index(position.rank)][as_index(position.index)];
  }

  const ActionTable& table_;
  Positions& positions_;
  std::span<const std::int32_t> heads_;
};

[[noreturn]] void fail_cycle(const ActionTable& table,
                             const TablePlaces& places,
                             Positions& positions,
                             std::span<const std::int32_t> heads) {
  const auto action = [&](Position position) {
    return to_string(table.rows[as_index(position.rank)][as_index(position.index)]);
  };
  std::string text;
  std::string prefix;
  for (const Wait& wait : CycleSearch(table, positions, heads).shortest()) {
    if (text.empty()) {
      prefix = places.prefix(as_index(wait.waiting.rank), as_index(wait.waiting.index));
    }
    text += format("{}rank {} waits at {}:{} for {}",
                   text.empty() ? "" : ", ",
                   wait.waiting.rank,
                   wait.waiting.index + 1,
                   action(wait.waiting),
                   action(wait.awaited));
  }
  fail(ErrorCode::kInvalidConfig, "{}the table never ends: {}", prefix, text);
}

}  // namespace

std::vector<OrderedAction> run_order(const ActionTable& table, const TablePlaces& in_text) {
  Positions positions(table);
  std::vector<OrderedAction> order;
  std::vector<std::int32_t> heads(table.rows.size(), 0);
  std::vector<std::vector<std::int32_t>> places(table.rows.size());  // in `order`, by position
  std::vector<std::vector<std::size_t>> waiting(table.rows.size());  // ranks, by awaited rank
  std::vector<std::size_t> ready;
  for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
    ready.push_back(table.rows.size() - 1 - rank);
  }
  while (!ready.empty()) {
    const std::size_t rank = ready.back();
    ready.pop_back();
    const std::vector<StageAction>& row = table.rows[rank];
    const std::int32_t before = heads[rank];
    for (std::int32_t& head = heads[rank]; as_index(head) < row.size(); ++head) {
      const StageAction& action = row[as_index(head)];
      const std::optional<Position> awaited = positions.awaited(action);
      OrderedAction ordered = {.rank = static_cast<std::int32_t>(rank),
                               .position = head,
                               .stage = static_cast<std::int32_t>(action.stage),
                               .kind = action.kind};
      if (awaited) {
        const std::size_t other = as_index(awaited->rank);
        if (awaited->index >= heads[other]) {
          if (other != rank) {
            waiting[other].push_back(rank);
          }
          break;
        }
        ordered.waits_for = places[other][as_index(awaited->index)];
        ordered.hops = other != rank;
      }
      places[rank].push_back(static_cast<std::int32_t>(order.size()));
      order.push_back(ordered);
    }
    if (heads[rank] > before) {
      ready.insert(ready.end(), waiting[rank].begin(), waiting[rank].end());
      waiting[rank].clear();
    }
  }
  if (std::cmp_less(order.size(), num_actions(table))) {
    fail_cycle(table, in_text, positions, heads);
  }
  return order;
}

TableClock::TableClock(const ActionTable& table)
    : table_(table), order_(run_order(table)), ends_(order_.size()), ranks_(table.rows.size()) {}

double TableClock::run(std::span<const ActionCosts> costs, double hop, double limit) {
  std::ranges::fill(ranks_, RankClock{});
  for (std::size_t stage = 0; stage < costs.size(); ++stage) {
    ranks_[as_index(table_.rank_of_stage[stage])].least_end +=
        static_cast<double>(table_.microbatches) * total(costs[stage]);
  }
  double last = 0.0;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const OrderedAction& action = order_[i];
    RankClock& rank = ranks_[as_index(action.rank)];
    if (action.waits_for != kNone) {
      const double ready_at = ends_[as_index(action.waits_for)] + (action.hops ? hop : 0.0);
      if (ready_at > rank.free_at) {
        rank.least_end += ready_at - rank.free_at;
        rank.free_at = ready_at;
        if (rank.least_end > limit) {
          return rank.least_end;
        }
      }
    }
    rank.free_at += slice_duration(table_, costs[as_index(action.stage)], action.kind);
    ends_[i] = rank.free_at;
    last = std::max(last, rank.free_at);
  }
  return last;
}

}  // namespace tessera
