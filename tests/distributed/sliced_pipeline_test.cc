// A pipeline that does the tokens of a microbatch in slices trains as one that does whole
// sequences, but for the order of sums; and bit by bit alike on any number of ranks.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/verify_ranks.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

using Layers = std::vector<std::int64_t>;

// Of several sequences in a microbatch, whose length most numbers of slices do not divide, and
// documents that end before, at and behind their bounds.
RankRun whole_run(std::int64_t microbatches) {
  return {.model = odd_llama(4),
          .mesh = local_mesh({}),
          .microbatches = microbatches,
          .global_batch = 2 * microbatches,
          .sequence_length = 13,
          .document_length = 4,
          .steps = 3};
}

RankRun sliced(RankRun run, const Layers& layers, std::int64_t slices, MeshDegrees degrees = {}) {
  degrees.pipeline = std::ssize(layers);
  run.mesh = local_mesh(degrees);
  run.pipeline.layers = layers;
  run.pipeline.slices = slices;
  return run;
}

TEST(SlicedPipeline, TrainsAsWholeSequencesDo) {
  for (const std::int64_t microbatches : {1, 3}) {
    const RankRun alone = whole_run(microbatches);
    const RankResult expected = run_ranks(alone);
    for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
      RankRun run = alone;
      run.pipeline.schedule = schedule;
      for (const std::int64_t slices : {4, 13}) {
        const std::string what =
            format("{} microbatches, {}, {} slices", microbatches, name(schedule), slices);
        const RankResult found = run_ranks(sliced(run, {2, 2}, slices));
        expect_close(found, expected, what);
        expect_equal(run_ranks(sliced(run, {1, 2, 1, 0}, slices)), found, what);
      }
    }
  }
}

// Scales of whole tensors are those of a slice then, so that codes round otherwise.
TEST(SlicedPipeline, TrainsIn8BitFloats) {
  for (const bool rowwise : {false, true}) {
    for (const std::int64_t tensor : {1, 2}) {
      RankRun alone = whole_run(2);
      alone.sequence_length = 16;
      alone.model.kv_heads = 2;
      alone.mesh = local_mesh({.tensor = tensor});
      alone.sequence_parallel = tensor > 1;
      alone.float8 = {.rowwise = rowwise, .head = true};
      const std::string what = format("rowwise {}, tensor {}", rowwise, tensor);
      const RankResult whole = run_ranks(alone);
      const MeshDegrees degrees = {.tensor = tensor};
      RankRun run = sliced(alone, {2, 2}, 4, degrees);
      const RankResult found = run_ranks(run);
      RankRun exact = run;
      exact.float8.reset();
      EXPECT_NE(run_ranks(exact).losses, found.losses) << what;
      for (std::size_t i = 0; i < found.losses.size(); ++i) {
        EXPECT_NEAR(found.losses[i], whole.losses[i], 2e-3F * whole.losses[i]) << what;
      }
      run = sliced(alone, {1, 2, 1, 0}, 4, degrees);
      run.recompute = true;
      run.overlap = true;
      expect_equal(run_ranks(run), found, what + ", recompute, overlap");
      run.recompute = false;
      run.fuse = false;
      expect_equal(run_ranks(run), found, what + ", not fused");
      if (!rowwise) {
        run.float8->keep_weight_codes = true;
        expect_equal(run_ranks(run), found, what + ", codes of weights kept");
      }
    }
  }
}

// A document that is not cut adds up as it would alone: here each slice is one.
TEST(SlicedPipeline, KeepsDocumentsApart) {
  RankRun run = whole_run(1);
  run.sequence_length = 12;
  const RankResult expected = run_ranks(run);
  expect_close(run_ranks(sliced(run, {2, 2}, 3)), expected, "a document in each slice");
  run.document_length = 0;
  EXPECT_NE(run_ranks(run).losses, expected.losses);
}

// Ranks that share layers' weights and states: each has its part of a slice.
TEST(SlicedPipeline, TrainsAsDataAndTensorRanksDo) {
  for (const std::int64_t tensor : {1, 2}) {
    for (const char* const placement : {"ddp", "zero1", "fsdp"}) {
      RankRun alone = whole_run(2);
      alone.model.kv_heads = 2;
      alone.model.tied = tensor == 2;
      alone.sequence_length = 12;
      alone.global_batch = 8;
      alone.mesh = local_mesh({.data = 2, .tensor = tensor});
      alone.placement = preset(placement, alone.mesh).placement;
      alone.sequence_parallel = tensor > 1;
      const std::string what = format("tensor {}, {}", tensor, placement);
      const MeshDegrees degrees = {.data = 2, .tensor = tensor};
      const RankResult found = run_ranks(sliced(alone, {3, 1}, 3, degrees));
      expect_close(found, run_ranks(alone), what);
      RankRun overlapped = sliced(alone, {1, 1, 2}, 3, degrees);
      overlapped.overlap = true;
      overlapped.recompute = true;
      expect_equal(run_ranks(overlapped), found, what + ", overlap, recompute");
    }
  }
}

// Of any family, in f32 or bf16, with adapters or without.
class RandomSlices : public testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds,
                         RandomSlices,
                         testing::Range<std::uint64_t>(0, num_drawn("TESSERA_RUNS", 16)));

TEST_P(RandomSlices, TrainAsWholeSequencesDo) {
  Draw draw(1000 + GetParam());
  const std::int64_t tensor = draw.one_of<std::int64_t>({1, 1, 2});
  const std::int64_t slices = draw.between(2, 4);
  RankRun alone;
  alone.mesh = local_mesh({.tensor = tensor});
  alone.other = draw_model(draw, tensor, draw.between(tensor, 90));
  if (draw.one_in(4)) {
    alone.other.adapters = {.rank = 2, .alpha = 4.0, .targets = {"wq", "wk", "w1", "w2"}};
  }
  alone.dtype = draw.one_in(3) ? DType::kBF16 : DType::kF32;
  alone.microbatches = draw.between(1, 3);
  alone.global_batch = alone.microbatches * draw.between(1, 2);
  alone.sequence_length = draw.between(slices, 30);
  alone.document_length = draw.between(0, 12);
  alone.recompute = draw.one_in(2);
  alone.steps = 2;
  if (tensor > 1 && draw.one_in(2)) {
    alone.sequence_parallel = true;
    alone.sequence_length = tensor * slices * draw.between(1, 5);
  }
  RankRun run = alone;
  run.pipeline.token_growth = draw.one_of<double>({0.0, 0.5, 9.0});
  run.pipeline.schedule = draw.one_in(2) ? PipelineSchedule::k1F1B : PipelineSchedule::kGPipe;
  const std::int64_t layers = num_layers(alone);
  const MeshDegrees degrees = {.tensor = tensor};
  const RankResult found = run_ranks(sliced(run, {layers, 0}, slices, degrees));
  const RankResult expected = run_ranks(alone);
  const std::string what = format("{} slices: {}", slices, text(run));
  if (alone.dtype == DType::kF32) {
    expect_close(found, expected, what);
  } else {
    EXPECT_NEAR(found.losses[0], expected.losses[0], 2e-3F * expected.losses[0]) << what;
    EXPECT_NEAR(found.grad_norms[0], expected.grad_norms[0], 2e-2F * expected.grad_norms[0])
        << what;
  }
  expect_equal(run_ranks(sliced(run, {1, layers - 1, 0}, slices, degrees)), found, what);
  run.recompute = !run.recompute;
  expect_equal(
      run_ranks(sliced(run, {0, layers}, slices, degrees)), found, what + ", recompute or not");
}

void expect_to_end(const RankRun& run, std::int64_t ranks) {
  const bool one_queue = run.pipeline.launch == TransferLaunch::kInOneQueue;
  std::vector<CollectiveSequence> classes;
  std::vector<std::size_t> class_of;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const CollectiveSequence calls = collective_calls(rank_program(run, {}, rank));
    classes.push_back(one_queue ? in_one_queue(calls) : calls);
    class_of.push_back(static_cast<std::size_t>(rank));
  }
  EXPECT_NO_THROW(verify_ranks(run.mesh, classes, class_of))
      << format("{} ranks, {} slices, {} microbatches, {}{}",
                ranks,
                run.pipeline.slices,
                run.microbatches,
                name(run.pipeline.schedule),
                one_queue ? ", in one queue" : "");
}

// Nobody waits in vain, even where sends end with their receives, or each begins when the rank's
// one before has ended.
TEST(SlicedPipeline, RanksComeToTheEnd) {
  for (const std::int64_t microbatches : {1, 3}) {
    for (const std::int64_t slices : {2, 3}) {
      for (const Layers& layers : {Layers{2, 2}, {1, 1, 1, 1}}) {
        for (const PipelineSchedule schedule :
             {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
          RankRun run = sliced(whole_run(microbatches), layers, slices);
          run.pipeline.schedule = schedule;
          expect_to_end(run, std::ssize(layers));
          run.pipeline.launch = TransferLaunch::kInOneQueue;
          expect_to_end(run, std::ssize(layers));
        }
      }
    }
  }
}

// The first of two ranks holds a microbatch and a slice in place of two microbatches.
TEST(SlicedPipeline, HoldsLessThanWholeSequences) {
  RankRun run = whole_run(4);
  run.sequence_length = 256;
  const auto peak = [&](std::int64_t slices) {
    for (const MemoryRow& row : memory_by_category(rank_program(sliced(run, {2, 2}, slices), {}))) {
      if (row.category == Category::kActivation) {
        return static_cast<double>(row.peak_bytes);
      }
    }
    return 0.0;
  };
  const double whole = peak(1);
  EXPECT_LT(peak(2), 0.9 * whole);
  EXPECT_LT(peak(4), 0.75 * whole);
}

TEST(SlicedPipeline, GoesOnInOtherSlices) {
  RankRun whole = whole_run(2);
  whole.one_batch = true;
  whole.steps = 6;
  const RankResult expected = run_ranks(whole);
  const TestDirectory directory;
  RankResult found;
  std::filesystem::path saved;
  for (const std::int64_t slices : {3, 1, 5}) {
    RankRun part = sliced(whole, slices == 1 ? Layers{2, 1, 1} : Layers{2, 2}, slices);
    part.steps = 2;
    part.resume = saved;
    saved = directory.path() / format("after-{}", slices);
    part.save = saved;
    const RankResult result = run_ranks(part);
    found.losses.insert(found.losses.end(), result.losses.begin(), result.losses.end());
    found.grad_norms.insert(
        found.grad_norms.end(), result.grad_norms.begin(), result.grad_norms.end());
  }
  expect_close(found, expected, "3, then no, then 5 slices");
}

}  // namespace
}  // namespace tessera
