#include "tessera/plan/model_costs.h"

#include <gtest/gtest.h>

#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

Plan plan_of(const LlamaConfig& model, std::int64_t tokens) {
  return {.model = describe_llama(model), .sequence_length = tokens, .dtype = DType::kBF16};
}

// Of a layer's weights a token needs 2 FLOP each in forward and 4 in backward, and of each token
// before it 4 and 10 per element of the queries (backward makes the scores again).
TEST(ModelCosts, TokensNeedMoreTheMoreAreBeforeThem) {
  const LlamaConfig model = llama_flavor("8B");
  const double queries = 4096.0;
  const double weights = 4096.0 * (2 * queries + 2 * 1024.0 + 3 * 14336.0);
  for (const std::int64_t tokens : {2048, 8191, 131072}) {
    const double expected = 14.0 * queries * static_cast<double>(tokens) / (6.0 * weights);
    EXPECT_NEAR(token_growth(plan_of(model, tokens)), expected, 0.02 * expected) << tokens;
  }
}

// So that slices do not depend on how a step is shared.
TEST(ModelCosts, TokensOfAnyBatchGrowAlike) {
  Plan plan = plan_of(llama_flavor("debug"), 512);
  const double expected = token_growth(plan);
  plan.microbatch = 3;
  plan.num_microbatches = 5;
  plan.passes.recompute = recompute_all();
  plan.passes.fuse = false;
  EXPECT_EQ(token_growth(plan), expected);
  EXPECT_EQ(token_growth(plan_of(llama_flavor("debug"), 1)), 0.0);
}

// A window bounds what a token attends to: tokens of a long sequence all need the same.
TEST(ModelCosts, TokensWithAWindowGrowLess) {
  LlamaConfig model = llama_flavor("debug");
  const double whole = token_growth(plan_of(model, 4096));
  model.window = 64;
  EXPECT_LT(token_growth(plan_of(model, 4096)), 0.05 * whole);
}

}  // namespace
}  // namespace tessera
