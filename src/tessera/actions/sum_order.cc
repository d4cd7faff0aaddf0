#include "tessera/actions/sum_order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "tessera/actions/as_index.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

// What actions of a stage add to, in the order of its row.
enum class SumOf : std::uint8_t { kLosses, kGradients };

// Of the forwards, only those of the last stage make losses.
std::optional<SumOf> sum_of(const StageAction& action, std::int64_t stages) {
  switch (action.kind) {
    case ActionKind::kForward:
      return action.stage == stages - 1 ? std::optional(SumOf::kLosses) : std::nullopt;
    case ActionKind::kBackward:
    case ActionKind::kWeightGradient:
      return SumOf::kGradients;
    case ActionKind::kInputGradient:
      break;
  }
  return std::nullopt;
}

// The microbatches of one sum of a stage.
std::string order_text(const ActionTable& table, std::int64_t stage, SumOf sum) {
  std::string text;
  for (const StageAction& action : table.rows[as_index(table.rank_of_stage[as_index(stage)])]) {
    if (action.stage == stage && sum_of(action, table.stages) == sum) {
      text += format("{}{}", text.empty() ? "" : " ", action.microbatch);
    }
  }
  return text + "\n";
}

}  // namespace

std::optional<StageAction> first_falling(const ActionTable& table) {
  std::vector<std::array<std::int64_t, 2>> last(as_index(table.stages), {-1, -1});
  for (const std::vector<StageAction>& row : table.rows) {
    for (const StageAction& action : row) {
      if (const std::optional<SumOf> sum = sum_of(action, table.stages)) {
        std::int64_t& before = last[as_index(action.stage)].at(static_cast<std::size_t>(*sum));
        if (action.microbatch < before) {
          return action;
        }
        before = action.microbatch;
      }
    }
  }
  return std::nullopt;
}

std::string sum_order(const ActionTable& table, std::span<const std::int64_t> layers) {
  TESSERA_CHECK(layers.size() == as_index(table.stages),
                "layers of {} stages, the table has {}",
                layers.size(),
                table.stages);
  if (!first_falling(table)) {
    return "";
  }
  const std::int64_t last = table.stages - 1;
  std::string text = order_text(table, 0, SumOf::kGradients);
  for (std::int64_t stage = 0; stage < table.stages; ++stage) {
    for (std::int64_t layer = 0; layer < layers[as_index(stage)]; ++layer) {
      text += order_text(table, stage, SumOf::kGradients);
    }
  }
  // The head's gradient is made with the loss where the two are one op, and else after it.
  return text + order_text(table, last, SumOf::kGradients) +
         order_text(table, last, SumOf::kLosses);
}

}  // namespace tessera
