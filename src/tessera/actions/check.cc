#include "tessera/actions/check.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "tessera/actions/as_index.h"
#include "tessera/actions/notes.h"
#include "tessera/actions/run_order.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

void check_shape(const ActionTable& table) {
  TESSERA_REQUIRE(table.ranks >= 1 && table.stages >= 1 && table.microbatches >= 1,
                  ErrorCode::kInvalidConfig,
                  "a table of {} ranks, {} stages and {} microbatches, expected at least 1 of each",
                  table.ranks,
                  table.stages,
                  table.microbatches);
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

// By stage and microbatch.
std::vector<PlacedAction> sorted_actions(const ActionTable& table) {
  std::vector<PlacedAction> sorted;
  for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
    for (std::size_t i = 0; i < table.rows[rank].size(); ++i) {
      const StageAction& action = table.rows[rank][i];
      TESSERA_REQUIRE(action.stage >= 0 && action.stage < table.stages && action.microbatch >= 0 &&
                          action.microbatch < table.microbatches,
                      ErrorCode::kInvalidConfig,
                      "rank {} has {}: stages are 0 to {}, microbatches 0 to {}",
                      rank,
                      to_string(action),
                      table.stages - 1,
                      table.microbatches - 1);
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
    return std::array{action.stage, action.microbatch, static_cast<std::int64_t>(action.kind)};
  });
  return sorted;
}

// The counts of a stage's actions of one microbatch.
struct KindCounts {
  std::array<std::int64_t, 4> counts = {};

  std::int64_t operator[](ActionKind kind) const {
    return counts.at(static_cast<std::size_t>(kind));
  }
};

void check_counts(const KindCounts& counts, std::int64_t stage, std::int64_t microbatch) {
  using enum ActionKind;
  for (const ActionKind kind : {kForward, kBackward, kInputGradient, kWeightGradient}) {
    TESSERA_REQUIRE(counts[kind] <= 1,
                    ErrorCode::kInvalidConfig,
                    "stage {} has {} of microbatch {} {} times",
                    stage,
                    letter(kind),
                    microbatch,
                    counts[kind]);
  }
  const bool has_part = counts[kInputGradient] + counts[kWeightGradient] > 0;
  const char* wrong = nullptr;
  if (counts[kForward] == 0) {
    wrong = "no F";
  } else if (counts[kBackward] == 1 && has_part) {
    wrong = "both B and its parts, I and W,";
  } else if (counts[kBackward] == 0 && !has_part) {
    wrong = "no B, nor I and W,";
  } else if (counts[kBackward] == 0 && counts[kWeightGradient] == 0) {
    wrong = "I but no W";
  } else if (counts[kBackward] == 0 && counts[kInputGradient] == 0) {
    wrong = "W but no I";
  }
  TESSERA_REQUIRE(wrong == nullptr,
                  ErrorCode::kInvalidConfig,
                  "stage {} has {} of microbatch {}",
                  stage,
                  wrong,
                  microbatch);
}

// Those of one stage and microbatch, by kind: F, B, I, W.
void check_order(std::span<const PlacedAction> actions, const ActionTable& table) {
  for (std::size_t i = 1; i < actions.size(); ++i) {
    const StageAction& action = actions[i].action;
    TESSERA_REQUIRE(actions[i - 1].position < actions[i].position,
                    ErrorCode::kInvalidConfig,
                    "rank {} has {} before {}",
                    table.rank_of_stage[as_index(action.stage)],
                    to_string(action),
                    to_string(actions[i - 1].action));
  }
}

void check_complete(const ActionTable& table) {
  const std::vector<PlacedAction> sorted = sorted_actions(table);
  std::size_t begin = 0;
  for (std::int64_t stage = 0; stage < table.stages; ++stage) {
    for (std::int64_t microbatch = 0; microbatch < table.microbatches; ++microbatch) {
      KindCounts counts;
      std::size_t end = begin;
      while (end < sorted.size() && sorted[end].action.stage == stage &&
             sorted[end].action.microbatch == microbatch) {
        ++counts.counts.at(static_cast<std::size_t>(sorted[end].action.kind));
        ++end;
      }
      check_counts(counts, stage, microbatch);
      check_order(std::span(sorted).subspan(begin, end - begin), table);
      begin = end;
    }
  }
}

}  // namespace

std::vector<std::string> check(const ActionTable& table) {
  check_shape(table);
  check_complete(table);
  run_order(table);
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
