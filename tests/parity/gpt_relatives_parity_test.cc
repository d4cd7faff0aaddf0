// Relatives of GPT-2 (no biases, squared ReLU, ALiBi) against PyTorch: logits, and loss and
// gradient norm of some steps of AdamW. The goldens come from
// tests/golden/make_gpt_relatives_goldens.py.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/ops/all_ops.h"
#include "tests/parity/golden_model.h"

namespace tessera {
namespace {

void change_relative(const std::string& folder, ModelSection& section) {
  if (folder == "gpt_unbiased") {
    section.bias = false;
    section.squared_relu = true;
  } else {
    section.alibi = true;
  }
}

class GptRelatives : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Goldens,
                         GptRelatives,
                         testing::Values("gpt_unbiased", "gpt_alibi"),
                         [](const auto& folder) { return folder.param; });

TEST_P(GptRelatives, TrainAsInPyTorch) {
  for (const std::int64_t padding : {0, 5}) {
    GoldenModel model(GetParam(), padding);
    model.change([&](ModelSection& section) { change_relative(GetParam(), section); });
    for (const StepForm form : {StepForm{}, StepForm{.recompute = true}, StepForm{.fuse = false}}) {
      const auto steps = model.train(form);
      const nlohmann::json& golden = model.golden();
      for (std::size_t n = 0; n < steps.size(); ++n) {
        const double loss = golden.at("losses")[n];
        const double norm = golden.at("grad_norms")[n];
        EXPECT_NEAR(steps[n].first, loss, 2e-5 * loss) << "step " << n + 1;
        EXPECT_NEAR(steps[n].second, norm, 2e-4 * norm) << "step " << n + 1;
      }
    }
  }
}

// Cached generation knows no attention of several ops; logits of whole sequences need no cache.
TEST_P(GptRelatives, LogitsAreThoseOfPyTorch) {
  GoldenModel model(GetParam(), 0);
  model.change([&](ModelSection& section) { change_relative(GetParam(), section); });
  const std::vector<float> expected = model.golden_logits();
  const std::vector<float> found = model.logits();
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], 2e-5F) << "logit " << i;
  }
}

// The goldens would show it, were a slope or the square left out.
TEST_P(GptRelatives, EachPartMovesTheLogits) {
  GoldenModel model(GetParam(), 0);
  model.change([&](ModelSection& section) {
    change_relative(GetParam(), section);
    section.squared_relu = false;
  });
  const auto found = model.logits([](Graph& graph) {
    for (Node& node : graph.nodes) {
      if (const auto* attrs = node.op->get_if<ScaleMaskSoftmaxAttrs>(); attrs != nullptr) {
        ScaleMaskSoftmaxAttrs flat = *attrs;
        flat.mask.alibi_heads = 0;
        node.op = make_op(flat);
      }
    }
  });
  const std::vector<float> expected = model.golden_logits();
  float largest = 0.0F;
  for (std::size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::abs(found[i] - expected[i]));
  }
  EXPECT_GT(largest, 1e-3F);
}

TEST_P(GptRelatives, HaveNoFormOfHuggingFace) {
  ModelSection section = GoldenModel(GetParam(), 0).section();
  change_relative(GetParam(), section);
  EXPECT_THAT(error_of(ErrorCode::kUnsupported,
                       [&] { model_family("gpt2").hugging_face_config(section, {}); }),
              testing::HasSubstr("expected model.bias = true"));
}

}  // namespace
}  // namespace tessera
