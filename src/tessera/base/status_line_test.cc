#include "tessera/base/status_line.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

TEST(DescribeWork, SaysWhatIsDoneHowFastAndHowLongTheRestTakes) {
  // 30 MiB in 3 s: 10 MiB/s, and 60 MiB are left.
  EXPECT_EQ(describe_work({.done = 40 * kMebibyte,
                           .total = 100 * kMebibyte,
                           .first = 10 * kMebibyte,
                           .seconds = 3}),
            "40.0 MiB of 100 MiB (40 %)  10.0 MiB/s  6.0 s left");
}

TEST(DescribeWork, CountsWhatHasAUnit) {
  EXPECT_EQ(describe_work({.done = 1200, .total = 4800, .seconds = 20}, "tensors"),
            "1,200 of 4,800 tensors (25 %)  1m00s left");
}

TEST(DescribeWork, SaysNoTimeBeforeAnythingIsDone) {
  EXPECT_EQ(describe_work({.done = 5, .total = 10, .first = 5, .seconds = 3}, "files"),
            "5 of 10 files (50 %)");
  EXPECT_EQ(describe_work({.done = 0, .total = 0, .seconds = 0}, "files"), "0 of 0 files (0 %)");
}

TEST(StatusLine, IsNotDueAtOnce) {
  const StatusLine line;
  EXPECT_FALSE(line.is_due());
}

}  // namespace
}  // namespace tessera
