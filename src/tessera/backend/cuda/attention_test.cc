// Attention by a library and by our own kernels, on a device or emulated: either must compute what
// is asked, and both the same.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cuda/kernels_under_test.h"
#include "tessera/base/format.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/conformance.h"
#include "tessera/ops/testing/execute.h"
#include "tessera/ops/testing/tolerance.h"

namespace tessera::cuda {
namespace {

using conformance::check_kernel_on;
using conformance::execute;
using conformance::HostTensor;
using conformance::Outcome;
using conformance::Sample;
using conformance::widened;
using testing::IsEmpty;

class CudaAttention : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    own_ = kernels_under_test(reason, {.library_attention = false});
    if (own_ == nullptr) {
      GTEST_SKIP() << reason;
    }
    library_ = kernels_under_test(reason);
  }

  Backend& own() { return *own_; }

  Backend& library() { return *library_; }

  void expect_own_equals_reference(const std::vector<Sample>& all) {
    for (const Sample& sample : all) {
      if (sample.name.find("whole_rows") != std::string::npos ||
          sample.name.find("documents") != std::string::npos) {
        EXPECT_THAT(check_kernel_on(own(), sample), IsEmpty()) << sample.name;
      }
    }
  }

 private:
  std::unique_ptr<Backend> own_;
  std::unique_ptr<Backend> library_;
};

// In workspaces that are laid out for the library's.
TEST_F(CudaAttention, OwnKernelsComputeForward) {
  expect_own_equals_reference(samples(SamplesOf<AttentionAttrs>()));
}

TEST_F(CudaAttention, OwnKernelsComputeBackward) {
  expect_own_equals_reference(samples(SamplesOf<AttentionBackwardAttrs>()));
}

// Sizes of a model's layers; emulated some that a CPU can do.
struct Layer {
  std::int64_t batch;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t groups;
  std::int64_t channels;
  std::int64_t document;  // tokens of each; 0: a row is one
};

std::vector<Layer> layers() {
#ifdef TESSERA_EMULATED_CUDA
  return {{1, 64, 4, 2, 64, 0}, {2, 80, 3, 3, 64, 0}, {2, 80, 2, 1, 64, 37}};
#else
  // Llama 8B's, which the library does backward in parts, and GPT-2's.
  return {{1, 8192, 32, 8, 128, 0}, {8, 1024, 12, 12, 64, 0}, {1, 8192, 32, 8, 128, 1500}};
#endif
}

// Operands, on random values.
std::vector<HostTensor> operands_of(const Layer& layer) {
  const auto heads = [&](const char* name, std::int64_t count) {
    return format("?[batch={}, seq={}, {}={}, head_dim={}]",
                  layer.batch,
                  layer.tokens,
                  name,
                  count,
                  layer.channels);
  };
  const std::string ids = format("i32[batch={}, seq={}]", layer.batch, layer.tokens);
  Sample sample{.name = format("{}_{}_{}", layer.tokens, layer.heads, layer.document),
                .op = make_op(AttentionAttrs{})};
  sample.operands = conformance::types(DType::kBF16,
                                       {heads("heads", layer.heads),
                                        heads("kv_heads", layer.groups),
                                        heads("kv_heads", layer.groups),
                                        ids,
                                        ids,
                                        ids,
                                        ids});
  sample.fills.assign(3, conformance::normal());
  sample.fills.resize(7, conformance::prepared());
  std::vector<HostTensor> operands = make_operands(sample);
  const std::int64_t length = layer.document == 0 ? layer.tokens : layer.document;
  for (std::size_t tensor = 3; tensor < 7; ++tensor) {
    const auto values = operands[tensor].i32();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto token = static_cast<std::int64_t>(i) % layer.tokens;
      values[i] = static_cast<std::int32_t>(tensor < 5 ? token % length : token / length);
    }
  }
  return operands;
}

void expect_alike(const HostTensor& found, const HostTensor& expected, const std::string& what) {
  const conformance::Tolerance limit =
      tolerance(conformance::OpClass::kRoundedTerms, expected.type().dtype);
  EXPECT_EQ(difference(found, widened(expected), limit), std::nullopt) << what;
}

TEST_F(CudaAttention, TheLibraryComputesWhatOwnKernelsDo) {
  if (const std::string problem = library_attention_problem(); !problem.empty()) {
    GTEST_SKIP() << problem;
  }
  for (const Layer& layer : layers()) {
    const std::string what = format("{} tokens, {} of a document", layer.tokens, layer.document);
    const double scale = 1.0 / std::sqrt(static_cast<double>(layer.channels));
    const bool whole_rows = layer.document == 0;
    std::vector<HostTensor> operands = operands_of(layer);
    const OpRef forward = make_op(AttentionAttrs{.scale = scale, .whole_rows = whole_rows});
    const Outcome expected = execute(*forward, operands, {.backend = &own()});
    const Outcome found = execute(*forward, operands, {.backend = &library()});
    EXPECT_THAT(found.failures, IsEmpty()) << what;
    expect_alike(found.results[0], expected.results[0], "o of " + what);
    expect_alike(found.results[1], expected.results[1], "lse of " + what);
    // Else it was not the library.
    EXPECT_FALSE(found.results == expected.results) << what;

    std::vector<HostTensor> of_backward = {operands[0]};  // dout
    of_backward.insert(of_backward.end(), operands.begin(), operands.begin() + 3);
    of_backward.insert(of_backward.end(), expected.results.begin(), expected.results.end());
    of_backward.insert(of_backward.end(), operands.begin() + 3, operands.end());
    const OpRef backward =
        make_op(AttentionBackwardAttrs{.scale = scale, .whole_rows = whole_rows});
    const Outcome slopes = execute(*backward, of_backward, {.backend = &own()});
    const Outcome slopes_found = execute(*backward, of_backward, {.backend = &library()});
    EXPECT_THAT(slopes_found.failures, IsEmpty()) << what;
    for (std::size_t i = 0; i < slopes.results.size(); ++i) {
      expect_alike(slopes_found.results[i], slopes.results[i], format("slopes {} of {}", i, what));
    }
    // With documents own kernels do it either way.
    EXPECT_EQ(slopes_found.results == slopes.results, !whole_rows) << what;
  }
}

}  // namespace
}  // namespace tessera::cuda
