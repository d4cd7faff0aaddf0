#include "tessera/resolve/software_stack.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr std::string_view kText = R"(
[eager]
issue = "15 us"
source = "a table"
)";

TEST(SoftwareStack, IsReadBack) {
  const std::vector<SoftwareStack> stacks = parse_stacks(kText, "stacks.toml");
  ASSERT_EQ(stacks.size(), 1);
  EXPECT_EQ(stacks[0].name, "eager");
  EXPECT_DOUBLE_EQ(stacks[0].issue, 15e-6);
  EXPECT_EQ(parse_stacks(to_toml(stacks[0]), "again").at(0), stacks[0]);
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
