// Models whose head is their table of embeddings, in steps of several microbatches, against PyTorch
// in f32, where the gradients of both add up apart: losses, gradient norms, and all weights at the
// end. The goldens come from tests/golden/make_tied_goldens.py.

#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include "tests/parity/golden_model.h"

namespace tessera {
namespace {

class TiedParity : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Families,
                         TiedParity,
                         testing::Values("gpt2", "llama31"),
                         [](const auto& family) { return family.param; });

TEST_P(TiedParity, LossesNormsAndWeights) {
  for (const bool recompute : {false, true}) {
    GoldenModel model(GetParam(), 0, "microbatches");
    ASSERT_EQ(model.microbatches(), 4);
    model.start_training({.recompute = recompute});
    for (std::size_t n = 0; n < model.golden().at("steps").get<std::size_t>(); ++n) {
      const auto [loss, grad_norm] = model.step(n);
      const double expected_loss = model.golden().at("losses").at(n);
      const double expected_norm = model.golden().at("grad_norms").at(n);
      EXPECT_NEAR(loss, expected_loss, (n == 0 ? 1e-5 : 1e-4) * expected_loss) << "step " << n + 1;
      EXPECT_NEAR(grad_norm, expected_norm, (n == 0 ? 1e-5 : 1e-3) * expected_norm)
          << "step " << n + 1;
    }
    expect_near_goldens(
        model,
        "after.",
        [&](const std::string& parameter) { return model.state(parameter); },
        3e-5);
  }
}

}  // namespace
}  // namespace tessera
