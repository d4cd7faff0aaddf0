#include "tessera/dataset/same_data.h"

#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/launch/rank_launch.h"
#include "tessera/runtime/launcher.h"

namespace tessera {
namespace {

// As three ranks whose data is described so.
void compare(const std::vector<std::string>& own) {
  launch_ranks(3, {}, [&](World& world) {
    require_same_data(*control_group(world), own[static_cast<std::size_t>(world.rank())]);
  });
}

TEST(SameData, NamesTheFirstRankAndLineThatDiffer) {
  const std::string rank0 = "tokenizer: checksum 1\ntraining data: 5 tokens\n";
  compare({rank0, rank0, rank0});
  const std::string message = error_of(ErrorCode::kInvalidData, [&] {
    compare({rank0, rank0, "tokenizer: checksum 1\ntraining data: 6 tokens\n"});
  });
  EXPECT_TRUE(message.starts_with(
      "rank 2 has other files than rank 0: training data: 6 tokens; rank 0: training data: 5 "
      "tokens: give all ranks the same files"))
      << message;
}

TEST(SameData, NamesWhatOnlyOneHas) {
  const std::string message = error_of(ErrorCode::kInvalidData, [&] {
    compare({"tokenizer: checksum 1\n", "tokenizer: checksum 2\n", "tokenizer: checksum 3\n"});
  });
  EXPECT_TRUE(message.starts_with("rank 1 has other files than rank 0: tokenizer: checksum 2; "))
      << message;
}

}  // namespace
}  // namespace tessera
