#include "tessera/actions/forwards.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/as_index.h"
#include "tessera/actions/generators.h"
#include "tessera/actions/run_order.h"
#include "tessera/actions/timeline.h"

namespace tessera {
namespace {

std::vector<std::int64_t> loops(std::int64_t ranks, std::int64_t chunks) {
  return interleaved(ranks, chunks, ranks).rank_of_stage;
}

TEST(Forwards, AreThoseOfGPipe) {
  for (const std::int64_t ranks : {1, 2, 5}) {
    for (const std::int64_t microbatches : {1, 3, 10}) {
      ActionTable expected = gpipe(ranks, microbatches);
      for (std::vector<StageAction>& row : expected.rows) {
        std::erase_if(
            row, [](const StageAction& action) { return action.kind != ActionKind::kForward; });
      }
      EXPECT_EQ(forwards(loops(ranks, 1), microbatches), expected);
    }
  }
}

// Each stage does each microbatch once, and the ranks never wait for each other in a circle.
TEST(Forwards, RunOverAnyStages) {
  const std::vector<std::vector<std::int64_t>> places = {
      loops(3, 4), zb_v(4, 8).rank_of_stage, {0, 0, 1, 1, 0}, {2, 0, 1, 0, 2}};
  for (const std::vector<std::int64_t>& place : places) {
    for (const std::int64_t microbatches : {1, 4, 9}) {
      const ActionTable table = forwards(place, microbatches);
      EXPECT_EQ(run_order(table).size(), place.size() * as_index(microbatches));
      std::set<StageAction> all;
      for (std::int64_t rank = 0; rank < table.ranks; ++rank) {
        for (const StageAction& action : table.rows[as_index(rank)]) {
          EXPECT_EQ(place[as_index(action.stage)], rank);
          all.insert(action);
        }
      }
      EXPECT_EQ(all.size(), place.size() * as_index(microbatches));
    }
  }
}

// All ranks work all the time, but while the pipeline fills and drains.
TEST(Forwards, FillLoops) {
  for (const std::int64_t ranks : {1, 2, 4}) {
    for (const std::int64_t chunks : {1, 2, 3}) {
      const std::int64_t microbatches = 4 * ranks;
      const ActionTable table = forwards(loops(ranks, chunks), microbatches);
      EXPECT_EQ(timeline(table).makespan, static_cast<double>(microbatches * chunks + ranks - 1));
    }
  }
}

}  // namespace
}  // namespace tessera
