#include "tessera/actions/action_table.h"

#include <cstddef>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {

char letter(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return 'F';
    case ActionKind::kBackward:
      return 'B';
    case ActionKind::kInputGradient:
      return 'I';
    case ActionKind::kWeightGradient:
      return 'W';
  }
  fail(ErrorCode::kInternal, "unknown kind of action {}", static_cast<int>(kind));
}

std::string to_string(const StageAction& action) {
  return format("{}{}{}{}",
                action.stage,
                letter(action.kind),
                action.microbatch,
                action.slice > 0 ? format(".{}", action.slice) : "");
}

std::vector<std::int64_t> stages_of_rank(const ActionTable& table, std::int64_t rank) {
  std::vector<std::int64_t> stages;
  for (std::size_t stage = 0; stage < table.rank_of_stage.size(); ++stage) {
    if (table.rank_of_stage[stage] == rank) {
      stages.push_back(static_cast<std::int64_t>(stage));
    }
  }
  return stages;
}

std::int64_t num_actions(const ActionTable& table) {
  std::size_t count = 0;
  for (const std::vector<StageAction>& row : table.rows) {
    count += row.size();
  }
  return static_cast<std::int64_t>(count);
}

}  // namespace tessera
