#include "tessera/actions/forwards.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "tessera/actions/as_index.h"

namespace tessera {

ActionTable forwards(std::vector<std::int64_t> rank_of_stage, std::int64_t microbatches) {
  ActionTable table = {.ranks = std::ranges::max(rank_of_stage) + 1,
                       .stages = std::ssize(rank_of_stage),
                       .microbatches = microbatches,
                       .rank_of_stage = std::move(rank_of_stage),
                       .rows = {}};
  table.rows.resize(as_index(table.ranks));
  std::vector<std::int64_t> done(as_index(table.stages));  // microbatches, by stage
  while (done.back() < microbatches) {
    const std::vector<std::int64_t> before = done;
    std::vector<bool> is_busy(as_index(table.ranks), false);
    for (std::size_t stage = done.size(); stage-- > 0;) {
      const std::size_t rank = as_index(table.rank_of_stage[stage]);
      if (!is_busy[rank] && done[stage] < (stage == 0 ? microbatches : before[stage - 1])) {
        table.rows[rank].push_back({.stage = static_cast<std::int64_t>(stage),
                                    .kind = ActionKind::kForward,
                                    .microbatch = done[stage]++});
        is_busy[rank] = true;
      }
    }
  }
  return table;
}

}  // namespace tessera
