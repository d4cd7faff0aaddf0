#include "tessera/resolve/software_stack.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/cost/constants.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr std::string_view kText = R"(
[eager]
issue = "15 us"
collective = "100 us"
attention = 0.5
source = "a table"
)";

TEST(SoftwareStack, IsReadBack) {
  const std::vector<SoftwareStack> stacks = parse_stacks(kText, "stacks.toml");
  ASSERT_EQ(stacks.size(), 1);
  EXPECT_EQ(stacks[0].name, "eager");
  EXPECT_DOUBLE_EQ(stacks[0].issue, 15e-6);
  EXPECT_DOUBLE_EQ(stacks[0].collective, 100e-6);
  EXPECT_EQ(stacks[0].attention, 0.5);
  EXPECT_EQ(parse_stacks(to_toml(stacks[0]), "again").at(0), stacks[0]);
}

TEST(SoftwareStack, SlowsAttentionAlone) {
  Cluster cluster = local_cluster(1);
  const SoftwareStack stack = {.name = "a", .attention = 0.5, .source = ""};
  const DeviceCurve usual = kUsualCurve;
  const DeviceCurve slow = *with_stack(cluster, stack).device.curve;
  EXPECT_EQ(slow.attention.forward, 0.5 * usual.attention.forward);
  EXPECT_EQ(slow.matmul, usual.matmul);
  EXPECT_EQ(with_stack(cluster, SoftwareStack()), cluster);
}

TEST(SoftwareStack, SaysWhatIsWrong) {
  EXPECT_THAT(
      error_of(ErrorCode::kInvalidConfig, [] { parse_stacks("[a]\nissues = 1\n", "s.toml"); }),
      HasSubstr("s.toml:2"));
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [] { find_stack("stacks.toml"); }),
              HasSubstr("the name of one"));
  const TestDirectory directory;
  const std::string file = (directory.path() / "stacks.toml").string();
  write_test_file(file, kText);
  EXPECT_EQ(find_stack(file + ":eager").issue, 15e-6);
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { find_stack(file + ":fused"); }),
              HasSubstr("expected one of eager"));
}

}  // namespace
}  // namespace tessera
