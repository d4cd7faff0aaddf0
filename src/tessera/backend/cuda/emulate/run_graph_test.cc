#include "tessera/backend/cuda/emulate/run_graph.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cuda/emulate/emulated_backend.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/conformance.h"

namespace tessera::cuda {
namespace {

using conformance::check_kernel_on;
using conformance::Sample;
using ::testing::IsEmpty;

class WithoutGraphs : public testing::Test {
 protected:
  void SetUp() override { refuse_graphs(true); }

  void TearDown() override { refuse_graphs(false); }

  static void expect_equal(const std::vector<Sample>& all) {
    const std::unique_ptr<DeviceBackend> backend = make_emulated_backend({});
    for (const Sample& sample : all) {
      if (sample.name.find("whole_rows") != std::string::npos ||
          sample.name.find("documents") != std::string::npos) {
        EXPECT_THAT(check_kernel_on(*backend, sample), IsEmpty()) << sample.name;
      }
    }
  }
};

// In workspaces that were laid out for the library's.
TEST_F(WithoutGraphs, OwnKernelsComputeForward) {
  expect_equal(samples(SamplesOf<AttentionAttrs>()));
}

TEST_F(WithoutGraphs, OwnKernelsComputeBackward) {
  expect_equal(samples(SamplesOf<AttentionBackwardAttrs>()));
}

}  // namespace
}  // namespace tessera::cuda
