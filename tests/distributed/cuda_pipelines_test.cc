// Pipelines of ranks on CUDA devices, which they share where there are fewer: bit by bit what ranks
// without one compute there. On a device or emulated.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cuda/kernels/kernels_under_test.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/comm/nccl/host_native.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

// How ranks talk: the host moves memory, or a library of the devices would, in whose place it does
// when the device comes to it; and whether steps are recorded.
struct Talk {
  bool native = false;
  bool records = true;
};

class CudaPipelines : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string reason; cuda::kernels_under_test(reason) == nullptr) {
      GTEST_SKIP() << reason;
    }
  }

  // A step by itself, one that is recorded, and one that is replayed alone.
  static RankRun alone() {
    LlamaConfig model = odd_llama();
    model.tied = true;
    return {.model = model,
            .mesh = local_mesh({}),
            .microbatches = 4,
            .global_batch = 4,
            .sequence_length = 6,
            .steps = 3};
  }

  // A real graph cannot hold what stands for the library here: see cuda_layouts_test.cc.
  RankRun on_cuda(RankRun run, Talk talk = {}) {
    run.device = [may_record = talk.records && (is_emulated() || !talk.native)] {
      std::string none;
      return cuda::kernels_under_test(none, {.may_record = may_record});
    };
    if (talk.native) {
      run.join = [this](World& host, const NcclOptions& options) {
        return std::make_unique<HostNative>(host, options, waits_);
      };
    }
    return run;
  }

  static RankRun in_stages(RankRun run,
                           PipelineSchedule schedule,
                           const std::vector<std::int64_t>& layers) {
    run.mesh = local_mesh({.data = run.mesh.num_ranks(), .pipeline = 2});
    run.pipeline = {.layers = layers, .schedule = schedule};
    return run;
  }

  // Where the host moves memory, what lies between transfers; else the whole step as one.
  static void expect_recorded(std::size_t num_replayed, const RankRun& run, Talk talk) {
    const bool is_native = run.join != nullptr;
    if (!talk.records) {
      EXPECT_EQ(num_replayed, 0U);
    } else if (is_native) {
      EXPECT_EQ(num_replayed, is_emulated() ? 1U : 0U);
    } else {
      EXPECT_GT(num_replayed, 2U);
    }
  }

  static bool is_emulated() {
    std::string reason;
    return cuda::kernels_under_test(reason)->name() != "cuda";
  }

  std::atomic<int> waits_ = 0;
};

// Embedding and head share their weights; along the V they are on one rank.
TEST_F(CudaPipelines, TrainAsOneRankDoes) {
  struct Layout {
    PipelineSchedule schedule;
    std::vector<std::int64_t> layers;
    std::vector<Talk> talks;
  };

  const RankResult expected = run_ranks(on_cuda(alone()));
  for (const Layout& tried :
       {Layout{.schedule = PipelineSchedule::k1F1B,
               .layers = {2, 1},
               .talks = {{.native = false}, {.native = true}, {.native = true, .records = false}}},
        Layout{.schedule = PipelineSchedule::kInterleaved,
               .layers = {1, 1, 1, 0},
               .talks = {{.native = true}}},
        Layout{.schedule = PipelineSchedule::kZbV,
               .layers = {0, 1, 1, 1},
               .talks = {{.native = false, .records = false}, {.native = true}}}}) {
    for (const Talk talk : tried.talks) {
      const RankRun run = on_cuda(in_stages(alone(), tried.schedule, tried.layers), talk);
      const RankResult found = run_ranks(run);
      expect_equal(found,
                   expected,
                   format("{}{}{}",
                          name(tried.schedule),
                          talk.native ? ", native" : "",
                          talk.records ? ", recorded" : ""));
      expect_recorded(found.num_replayed, run, talk);
    }
  }
}

// State is gathered and reduced over data ranks beside what the pipeline sends.
TEST_F(CudaPipelines, TrainAsDataRanksDo) {
  RankRun data = alone();
  data.mesh = local_mesh({.data = 2});
  data.placement = preset("fsdp", data.mesh).placement;
  data.overlap = true;
  data.microbatches = 2;
  const RankResult expected = run_ranks(on_cuda(data));
  for (const bool native : {false, true}) {
    expect_equal(
        run_ranks(on_cuda(in_stages(data, PipelineSchedule::k1F1B, {2, 1}), {.native = native})),
        expected,
        native ? "native" : "");
  }
}

// Of the tokens in slices: whoever moves what ranks send, however they share the layers.
TEST_F(CudaPipelines, TrainInSlices) {
  const auto sliced = [&](PipelineSchedule schedule, const std::vector<std::int64_t>& layers) {
    RankRun run = in_stages(alone(), schedule, layers);
    run.pipeline.slices = 3;
    run.pipeline.token_growth = 2.0;
    return run;
  };
  const RankResult whole = run_ranks(on_cuda(alone()));
  const RankResult expected = run_ranks(on_cuda(sliced(PipelineSchedule::k1F1B, {3, 0})));
  expect_close(expected, whole, "whole sequences");
  for (const Talk talk : {Talk{.native = false}, Talk{.native = true}}) {
    for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
      const RankRun run = on_cuda(sliced(schedule, {1, 2}), talk);
      const RankResult found = run_ranks(run);
      expect_equal(found, expected, format("{}{}", name(schedule), talk.native ? ", native" : ""));
      expect_recorded(found.num_replayed, run, talk);
    }
  }
}

// What one stage fails with ends all of them, and is what the run ends with.
TEST_F(CudaPipelines, EndWithTheFirstError) {
  for (const bool native : {false, true}) {
    RankRun run = on_cuda(in_stages(alone(), PipelineSchedule::k1F1B, {2, 1}), {.native = native});
    run.unknown_token_step = 2;
    EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { run_ranks(run); }),
                testing::HasSubstr("embedding: id 67 at index 0 is outside [0, 67)"))
        << native;
  }
}

}  // namespace
}  // namespace tessera
