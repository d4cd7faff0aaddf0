#include "tessera/actions/check.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "tessera/actions/as_index.h"
#include "tessera/actions/notes.h"
#include "tessera/actions/run_order.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

void check_shape(const ActionTable& table) {
  TESSERA_REQUIRE(
      table.ranks >= 1 && table.stages >= 1 && table.microbatches >= 1 && table.slices >= 1,
      ErrorCode::kInvalidConfig,
      "a table of {} ranks, {} stages, {} microbatches and {} slices, expected at least 1 of each",
      table.ranks,
      table.stages,
      table.microbatches,
      table.slices);
  TESSERA_REQUIRE(table.rows.size() == as_index(table.ranks) &&
                      table.rank_of_stage.size() == as_index(table.stages),
                  ErrorCode::kInvalidConfig,
                  "a table of {} ranks and {} stages has {} rows and ranks of {} stages",
                  table.ranks,
                  table.stages,
                  table.rows.size(),
                  table.rank_of_stage.size());
  std::vector<bool> has_stage(table.rows.size());
  for (std::size_t stage = 0; stage < table.rank_of_stage.size(); ++stage) {
    const std::int64_t rank = table.rank_of_stage[stage];
    TESSERA_REQUIRE(rank >= 0 && rank < table.ranks,
                    ErrorCode::kInvalidConfig,
                    "stage {} is on rank {}, the ranks are 0 to {}",
                    stage,
                    rank,
                    table.ranks - 1);
    has_stage[as_index(rank)] = true;
  }
  const auto without = std::ranges::find(has_stage, false);
  TESSERA_REQUIRE(without == has_stage.end(),
                  ErrorCode::kInvalidConfig,
                  "rank {} has no stage",
                  without - has_stage.begin());
}

struct PlacedAction {
  StageAction action;
  std::size_t position = 0;  // in its row
};

// By stage, microbatch and slice, those of one kind in the order of the row.
std::vector<PlacedAction> sorted_actions(const ActionTable& table) {
  std::vector<PlacedAction> sorted;
  for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
    for (std::size_t i = 0; i < table.rows[rank].size(); ++i) {
      const StageAction& action = table.rows[rank][i];
      TESSERA_REQUIRE(action.stage >= 0 && action.stage < table.stages && action.microbatch >= 0 &&
                          action.microbatch < table.microbatches && action.slice >= 0 &&
                          action.slice < table.slices,
                      ErrorCode::kInvalidConfig,
                      "rank {} has {}: stages are 0 to {}, microbatches 0 to {}{}",
                      rank,
                      to_string(action),
                      table.stages - 1,
                      table.microbatches - 1,
                      table.slices > 1 ? format(", slices 0 to {}", table.slices - 1) : "");
      const std::int64_t home = table.rank_of_stage[as_index(action.stage)];
      TESSERA_REQUIRE(as_index(home) == rank,
                      ErrorCode::kInvalidConfig,
                      "stage {} is on rank {}, and rank {} has {}",
                      action.stage,
                      home,
                      rank,
                      to_string(action));
      sorted.push_back({action, i});
    }
  }
  std::ranges::sort(sorted, {}, [](const PlacedAction& placed) {
    const StageAction& action = placed.action;
    return std::array{action.stage,
                      action.microbatch,
                      action.slice,
                      static_cast<std::int64_t>(action.kind),
                      static_cast<std::int64_t>(placed.position)};
  });
  return sorted;
}

// A stage's actions of one slice of a microbatch.
struct ActionsOfOne {
  std::int64_t stage = 0;
  std::string microbatch;  // and which slice of it, if there are several
  std::size_t rank = 0;
  std::span<const PlacedAction> actions;  // by kind: F, B, I, W

  std::int64_t count(ActionKind kind) const {
    return std::ranges::count(
        actions, kind, [](const PlacedAction& placed) { return placed.action.kind; });
  }

  // Of the action at `i`, or of the row that has none.
  std::string prefix(const TablePlaces& places, std::size_t i) const {
    return i < actions.size() ? places.prefix(rank, actions[i].position) : places.prefix(rank);
  }
};

void check_none_twice(const ActionsOfOne& of, const TablePlaces& places) {
  for (std::size_t i = 1; i < of.actions.size(); ++i) {
    const ActionKind kind = of.actions[i].action.kind;
    TESSERA_REQUIRE(of.actions[i - 1].action.kind != kind,
                    ErrorCode::kInvalidConfig,
                    "{}stage {} has {} of microbatch {} {} times",
                    of.prefix(places, i),
                    of.stage,
                    letter(kind),
                    of.microbatch,
                    of.count(kind));
  }
}

void check_kinds(const ActionsOfOne& of, const TablePlaces& places) {
  using enum ActionKind;
  const bool has_backward = of.count(kBackward) > 0;
  const bool has_part = of.count(kInputGradient) + of.count(kWeightGradient) > 0;
  const char* wrong = nullptr;
  if (of.count(kForward) == 0) {
    wrong = "no F";
  } else if (has_backward && has_part) {
    wrong = "both B and its parts, I and W,";
  } else if (!has_backward && !has_part) {
    wrong = "no B, nor I and W,";
  } else if (!has_backward && of.count(kWeightGradient) == 0) {
    wrong = "I but no W";
  } else if (!has_backward && of.count(kInputGradient) == 0) {
    wrong = "W but no I";
  }
  TESSERA_REQUIRE(wrong == nullptr,
                  ErrorCode::kInvalidConfig,
                  "{}stage {} has {} of microbatch {}",
                  of.prefix(places, of.actions.size() - (of.actions.empty() ? 0 : 1)),
                  of.stage,
                  wrong,
                  of.microbatch);
}

void check_order(const ActionsOfOne& of, const TablePlaces& places) {
  for (std::size_t i = 1; i < of.actions.size(); ++i) {
    TESSERA_REQUIRE(of.actions[i - 1].position < of.actions[i].position,
                    ErrorCode::kInvalidConfig,
                    "{}rank {} has {} before {}",
                    of.prefix(places, i),
                    of.rank,
                    to_string(of.actions[i].action),
                    to_string(of.actions[i - 1].action));
  }
}

// A backward is both of its parts.
std::vector<ActionKind> parts_of(ActionKind kind) {
  using enum ActionKind;
  return kind == kBackward ? std::vector{kInputGradient, kWeightGradient} : std::vector{kind};
}

// The slices of a microbatch go forward in rising order and backward in falling order: a later one
// reads the keys and values of those before it, and adds to their gradients.
void check_slices(const ActionTable& table, const TablePlaces& places) {
  for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
    // Of a stage and microbatch, the one before that does the same part of the work.
    std::map<std::array<std::int64_t, 3>, StageAction> before;
    for (std::size_t i = 0; i < table.rows[rank].size(); ++i) {
      const StageAction& action = table.rows[rank][i];
      for (const ActionKind part : parts_of(action.kind)) {
        const auto [found, is_first] = before.try_emplace(
            {action.stage, action.microbatch, static_cast<std::int64_t>(part)}, action);
        const bool rises = part == ActionKind::kForward;
        TESSERA_REQUIRE(
            is_first ||
                (rises ? found->second.slice < action.slice : action.slice < found->second.slice),
            ErrorCode::kInvalidConfig,
            "{}rank {} has {} before {}: forwards of the slices of a microbatch come in rising "
            "order, backwards in falling order",
            places.prefix(rank, i),
            rank,
            to_string(found->second),
            to_string(action));
        found->second = action;
      }
    }
  }
}

void check_complete(const ActionTable& table, const TablePlaces& places) {
  const std::vector<PlacedAction> sorted = sorted_actions(table);
  std::size_t begin = 0;
  const std::int64_t units = table.microbatches * table.slices;
  for (std::int64_t i = 0; i < table.stages * units; ++i) {
    const std::int64_t stage = i / units;
    const std::int64_t microbatch = i % units / table.slices;
    const std::int64_t slice = i % table.slices;
    std::size_t end = begin;
    while (end < sorted.size() && sorted[end].action.stage == stage &&
           sorted[end].action.microbatch == microbatch && sorted[end].action.slice == slice) {
      ++end;
    }
    const ActionsOfOne of = {.stage = stage,
                             .microbatch = table.slices > 1
                                               ? format("{}, slice {}", microbatch, slice)
                                               : format("{}", microbatch),
                             .rank = as_index(table.rank_of_stage[as_index(stage)]),
                             .actions = std::span(sorted).subspan(begin, end - begin)};
    check_none_twice(of, places);
    check_kinds(of, places);
    check_order(of, places);
    begin = end;
  }
  if (table.slices > 1) {
    check_slices(table, places);
  }
}

}  // namespace

std::vector<std::string> check(const ActionTable& table, const TablePlaces& places) {
  check_shape(table);
  check_complete(table, places);
  run_order(table, places);
  return notes(table);
}

void require_run(const ActionTable& table,
                 std::string_view source,
                 std::int64_t ranks,
                 std::int64_t microbatches) {
  TESSERA_REQUIRE(table.ranks == ranks,
                  ErrorCode::kInvalidConfig,
                  "{} has {}, expected one per pipeline rank: parallel.pipeline = {}",
                  source,
                  format_plural(table.ranks, "row"),
                  ranks);
  TESSERA_REQUIRE(
      table.microbatches == microbatches,
      ErrorCode::kInvalidConfig,
      "{} has microbatches 0 to {}, the run has {} of them (train.global_batch / (data * "
      "microbatch))",
      source,
      table.microbatches - 1,
      microbatches);
}

}  // namespace tessera
