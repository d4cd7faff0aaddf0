#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/check.h"
#include "tessera/actions/test_random_table.h"
#include "tessera/actions/timeline.h"

namespace tessera {
namespace {

using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

RandomTableOptions options_of(std::uint64_t seed) {
  return {.ranks = 1 + static_cast<std::int64_t>(seed % 4),
          .stages = 4 + static_cast<std::int64_t>(seed % 5),
          .microbatches = 1 + static_cast<std::int64_t>(seed % 6),
          .slices = seed % 7 == 0 ? 3 : 1,
          .rising = seed % 2 == 0,
          .splits = seed % 3 != 0};
}

TEST(RandomTable, IsLegal) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const RandomTableOptions options = options_of(seed);
    const ActionTable table = random_table(seed, options);
    const std::vector<std::string> notes = check(table);
    if (options.rising) {
      EXPECT_THAT(notes, Each(Not(HasSubstr("after a later microbatch")))) << "seed " << seed;
    }
    EXPECT_GE(timeline(table).makespan, 2.999999 * static_cast<double>(options.microbatches));
    EXPECT_EQ(table, random_table(seed, options));
  }
}

TEST(RandomTable, ReachesEveryForm) {
  std::set<ActionKind> kinds;
  std::set<std::vector<std::int64_t>> placements;
  std::set<std::string> notes;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const ActionTable table =
        random_table(seed, {.ranks = 2, .stages = 3, .microbatches = 3, .rising = false});
    placements.insert(table.rank_of_stage);
    for (const std::string& note : check(table)) {
      notes.insert(note);
    }
    for (const std::vector<StageAction>& row : table.rows) {
      for (const StageAction& action : row) {
        kinds.insert(action.kind);
      }
    }
  }
  EXPECT_EQ(kinds.size(), 4U);
  EXPECT_EQ(placements.size(), 6U);  // all of 2 x 2 x 2 with both ranks
  EXPECT_THAT(notes, Contains(HasSubstr("after a later microbatch")));
}

}  // namespace
}  // namespace tessera
