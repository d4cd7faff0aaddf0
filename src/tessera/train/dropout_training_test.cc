// Dropout of a run: which elements are dropped follows from seed, step and sequence.

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "tessera/models/family.h"
#include "tessera/train/test_run.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

class DropoutTraining : public testing::Test {
 protected:
  RunConfig config(const std::string& name, double dropout) const {
    RunConfig run = runs_.config(name);
    run.train.steps = 3;
    run.train.microbatch = 1;
    run.train.dropout = dropout;
    run.passes.attention = AttentionOps::kFusedSoftmax;
    return run;
  }

  static double loss(const RunConfig& run) {
    const ModelFamily& family = model_family("gpt2");
    const ModelDescription model = family.describe(family.resolve(
        {.name = "gpt2", .dim = 24, .layers = 2, .heads = 2, .ffn = 32, .vocab = 300}));
    return train(run, model).loss.value();
  }

  TestRun runs_;
};

TEST_F(DropoutTraining, IsTheSameOnAnyRanks) {
  const double whole = loss(config("whole", 0.2));
  const double without = loss(config("without", 0.0));
  // Other masks would move the loss as much, several times what layouts may differ by.
  EXPECT_GT(std::abs(whole - without), 4e-4 * without);
  RunConfig cut = config("cut", 0.2);
  cut.parallel.data = 2;
  cut.parallel.ranks = 2;
  EXPECT_NEAR(loss(cut), whole, 1e-4 * whole);
  RunConfig wide = config("wide", 0.2);
  wide.train.microbatch = 4;
  EXPECT_NEAR(loss(wide), whole, 1e-4 * whole);
}

// Each step and each seed has masks of its own.
TEST_F(DropoutTraining, GoesOnWhereItWasStopped) {
  const double whole = loss(config("whole", 0.2));
  RunConfig parts = config("parts", 0.2);
  parts.train.steps = 2;
  loss(parts);
  parts.train.steps = 3;
  EXPECT_EQ(loss(parts), whole);
}

}  // namespace
}  // namespace tessera
