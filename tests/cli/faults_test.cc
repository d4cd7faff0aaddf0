// Runs whose disk is short of space, or is slow: what they say, and how they end.

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class FaultyRunTest : public TrainingTest {
 protected:
  // `tessera ARGUMENTS` with faults.
  Outcome faulty(const std::string& faults, const std::string& arguments) const {
    return shell(with_faults(faults) + " \"$tessera\" " + arguments);
  }
};

// The size of a checkpoint is known before the first one is written.
TEST_F(FaultyRunTest, AStartSaysThatTheDiskIsTooSmall) {
  const std::string run = "train run.toml --run.dir=a --train.steps=4 --checkpoint.keep=3";
  const Outcome roomy = shell("\"$tessera\" " + run);
  ASSERT_EQ(roomy.code, 0) << roomy.err;
  EXPECT_THAT(roomy.err, Not(HasSubstr("the disk of")));
  const Outcome small = faulty("space path=b most=1048576",
                               "train run.toml --run.dir=b --train.steps=4 --checkpoint.keep=30");
  ASSERT_EQ(small.code, 0) << small.err;
  EXPECT_THAT(small.err,
              ContainsRegex("warning: the disk of b has 1.00 MiB free, and a checkpoint takes "
                            "[0-9.]+ KiB: checkpoint.keep = 30 needs room for 32 at a time, of "
                            "which 0 are there, so that saves will fail once it is full; free some "
                            "of it, or set checkpoint.keep lower\n"));
  // With the best one beside them, and one that is there.
  const Outcome best = faulty("space path=a most=1048576",
                              "train run.toml --run.dir=a --train.steps=5 --checkpoint.keep=30 "
                              "--data.validation_share=0.2 --validation.every=1");
  ASSERT_EQ(best.code, 0) << best.err;
  EXPECT_THAT(best.err, HasSubstr("needs room for 33 at a time, of which 1 are there"));
}

}  // namespace
}  // namespace tessera
