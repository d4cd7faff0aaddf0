#include "tessera/passes/stages/work_order.h"

#include <algorithm>
#include <cstddef>

#include "tessera/base/error.h"

namespace tessera {

std::vector<WorkStep> work_order(const ActionTable& table, std::int64_t rank) {
  const std::vector<std::int64_t> own = stages_of_rank(table, rank);
  std::vector<WorkStep> order;
  for (const StageAction& action : table.rows[static_cast<std::size_t>(rank)]) {
    TESSERA_REQUIRE(action.kind == ActionKind::kForward || action.kind == ActionKind::kBackward,
                    ErrorCode::kUnsupported,
                    "{}: a backward in two parts; expected whole ones",
                    to_string(action));
    const auto chunk = std::ranges::find(own, action.stage) - own.begin();
    order.push_back({.code = {.action = action.kind == ActionKind::kForward ? Action::kForward
                                                                            : Action::kBackward,
                              .chunk = static_cast<std::int32_t>(chunk)},
                     .microbatch = static_cast<std::int32_t>(action.microbatch)});
  }
  return order;
}

}  // namespace tessera
