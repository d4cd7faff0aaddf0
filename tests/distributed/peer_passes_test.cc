// Passes that make of a step what other systems run: what goes along the pipeline in parts, and
// gradients that are written before they are added up.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/ir/dtype.h"
#include "tessera/ops/all_ops.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

RankRun small_run(const ModelDescription& model) {
  return {.model = odd_llama(),
          .other = model,
          .mesh = local_mesh({}),
          .microbatches = 3,
          .global_batch = 12,
          .document_length = 7,
          .steps = 3};
}

// Bytes that all programs send over the boundaries of stages: not those of tied weights.
std::int64_t bytes_sent(const RankRun& run) {
  const std::int64_t channels = 2 * (std::ssize(run.pipeline.layers) - 1);
  std::int64_t bytes = 0;
  for (const Program& program : rank_programs(run)) {
    for (const Segment& segment : program.segments) {
      for (const Instruction& instruction : segment.instructions) {
        const auto* send = instruction.op->get_if<SendAttrs>();
        if (send != nullptr && send->number < channels) {
          const TensorType& type = instruction.operands[0].type;
          bytes += type.num_elements() * static_cast<std::int64_t>(size_bytes(type.dtype));
        }
      }
    }
  }
  return bytes;
}

// Two stages whose tensor ranks have whole activations, of layers as the model has them.
std::vector<RankRun> pipelines(const RankRun& alone) {
  std::vector<RankRun> runs;
  for (const std::int64_t data : {1, 2}) {
    for (const bool zigzags : {false, true}) {
      RankRun run = alone;
      run.mesh = local_mesh({.data = data, .tensor = 2, .pipeline = 2});
      run.pipeline = {.layers = {num_layers(alone) - 1, 1}};
      if (zigzags) {
        run.pipeline = {.layers = {1, num_layers(alone) - 2, 0, 1},
                        .schedule = PipelineSchedule::kZbV};
      }
      runs.push_back(run);
    }
  }
  return runs;
}

TEST(ScatteredHops, SendHalfAndChangeNoBit) {
  for (const char* const family : {"gpt2", "llama3"}) {
    for (RankRun& run : pipelines(small_run(odd_model(family)))) {
      const std::string what =
          format("{}, {} ranks, {}", family, run.mesh.num_ranks(), name(run.pipeline.schedule));
      const RankResult expected = run_ranks(run);
      const std::int64_t whole = bytes_sent(run);
      run.scatter_hops = true;
      EXPECT_EQ(2 * bytes_sent(run), whole) << what;
      expect_equal(run_ranks(run), expected, what);
      run.recompute = true;
      expect_equal(run_ranks(run), expected, what + ", recomputed");
    }
  }
}

// With parts of sequences there is nothing to scatter.
TEST(ScatteredHops, LeavePartsAsTheyAre) {
  RankRun run = pipelines(small_run(odd_model("gpt2"))).front();
  run.sequence_parallel = true;
  const std::int64_t parts = bytes_sent(run);
  run.scatter_hops = true;
  EXPECT_GT(parts, 0);
  EXPECT_EQ(bytes_sent(run), parts);
}

std::int64_t num_additions(const Program& program) {
  std::int64_t count = 0;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      count += instruction.op->get_if<AddAttrs>() != nullptr ? 1 : 0;
    }
  }
  return count;
}

TEST(GradientsApart, AddUpAsJoinedOnesDo) {
  for (const char* const family : {"gpt2", "llama3"}) {
    RankRun alone = small_run(odd_model(family));
    std::vector<RankRun> runs = pipelines(alone);
    runs.push_back(alone);
    for (RankRun& run : runs) {
      const std::string what = format("{}, {} ranks", family, run.mesh.num_ranks());
      const RankResult expected = run_ranks(run);
      const std::int64_t joined = num_additions(rank_programs(run)[0]);
      run.joins_accumulation = false;
      EXPECT_GT(num_additions(rank_programs(run)[0]), joined) << what;
      const RankResult found = run_ranks(run);
      expect_close(found, expected, what);
      run.recompute = true;
      expect_equal(run_ranks(run), found, what + ", recomputed");
    }
  }
}

// Of products in bf16, a gradient is rounded before it is added.
TEST(GradientsApart, AreRoundedWhereProductsAre) {
  RankRun run = small_run(odd_model("llama3"));
  run.dtype = DType::kBF16;
  const RankResult joined = run_ranks(run);
  run.joins_accumulation = false;
  const RankResult apart = run_ranks(run);
  EXPECT_EQ(apart.losses[0], joined.losses[0]);
  EXPECT_NE(apart.grad_norms[0], joined.grad_norms[0]);
  EXPECT_NEAR(apart.grad_norms[0], joined.grad_norms[0], 1e-3F * joined.grad_norms[0]);
}

// Where ranks sum them up before they are added, they stay f32, and are added apart anyway.
TEST(GradientsApart, AreNotRoundedBeforeSumsOverRanks) {
  RankRun run = small_run(odd_model("llama3"));
  run.dtype = DType::kBF16;
  run.mesh = local_mesh({.data = 2});
  run.placement = {.grad = 2, .optimizer = 2};
  const RankResult joined = run_ranks(run);
  run.joins_accumulation = false;
  expect_equal(run_ranks(run), joined);
}

// Those of parameters in the segments of an action, on a stream.
std::int64_t num_gathers(const Program& program, Action action, std::size_t stream) {
  std::int64_t count = 0;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      const bool gathers = instruction.op->get_if<GatherSlicesAttrs>() != nullptr;
      count +=
          gathers && segment.code.action == action && instruction.stream.at() == stream ? 1 : 0;
    }
  }
  return count;
}

// Beside the forward, or in its way; of parameters and masters in bf16 and f32, of those that other
// stages use, too.
TEST(GathersAhead, TrainAsGathersOfTheUpdate) {
  for (const char* const family : {"gpt2", "llama3"}) {
    RankRun alone = small_run(odd_model(family));
    alone.mesh = local_mesh({.data = 2, .tensor = 2});
    alone.placement = {.optimizer = 2};
    RankRun stages = alone;
    stages.mesh = local_mesh({.data = 2, .pipeline = 2});
    stages.pipeline = {.layers = {num_layers(alone) - 1, 1}};
    for (RankRun run : {alone, stages}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        run.dtype = dtype;
        run.overlap = false;
        run.gathers_ahead = false;
        const RankResult expected = run_ranks(run);
        run.gathers_ahead = true;
        for (const bool overlap : {false, true}) {
          run.overlap = overlap;
          const Program program = rank_programs(run)[0];
          EXPECT_GT(num_gathers(program, Action::kStart, overlap ? 1 : 0), 0) << family;
          EXPECT_EQ(num_gathers(program, Action::kStart, overlap ? 0 : 1), 0) << family;
          const RankResult found = run_ranks(run);
          EXPECT_EQ(found.losses, expected.losses) << family << ", overlap " << overlap;
          EXPECT_EQ(found.grad_norms, expected.grad_norms) << family << ", overlap " << overlap;
        }
      }
    }
  }
}

// Collectives of activations on the stream of that name.
std::int64_t num_on_tensor_stream(const Program& program) {
  std::int64_t count = 0;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      if (program.streams[instruction.stream.at()] == "tensor") {
        EXPECT_TRUE(instruction.op->get_if<AllGatherAttrs>() != nullptr ||
                    instruction.op->get_if<ReduceScatterAttrs>() != nullptr ||
                    instruction.op->get_if<AllReduceAttrs>() != nullptr ||
                    instruction.op->get_if<RingShiftAttrs>() != nullptr)
            << to_string(*instruction.op);
        ++count;
      }
    }
  }
  return count;
}

// Whole activations and cut ones, in 8-bit floats, computed again, beside the gathers of states,
// and in stages: of several chunks, computed again, and with weights' gradients apart.
std::vector<RankRun> tensor_runs(const ModelDescription& model) {
  RankRun plain = small_run(model);
  plain.mesh = local_mesh({.data = 2, .tensor = 2});
  plain.placement = {.optimizer = 2};
  RankRun cut = plain;
  cut.sequence_parallel = true;
  RankRun codes = cut;
  codes.overlap = true;
  codes.placement = {.param = 2, .secondary = 2, .grad = 2, .optimizer = 2};
  codes.float8 = {.head = true};
  RankRun again = plain;
  again.overlap = true;
  again.recompute = true;
  RankRun ahead = cut;
  ahead.overlap = true;
  ahead.gathers_ahead = true;
  RankRun stages = cut;
  stages.placement = {};
  stages.mesh = local_mesh({.tensor = 2, .pipeline = 2});
  stages.pipeline = {.layers = {num_layers(plain) - 1, 1}};
  stages.recompute = true;
  stages.scatter_hops = true;
  RankRun apart = stages;
  apart.recompute = false;
  apart.pipeline.schedule = PipelineSchedule::kZbH1;
  return {plain, cut, codes, again, ahead, stages, apart};
}

TEST(TensorBeside, TrainsAsOneStreamDoes) {
  for (const char* const family : {"gpt2", "llama3", "neox"}) {
    for (RankRun& run : tensor_runs(odd_model(family))) {
      SCOPED_TRACE(format("{}, float8 {}, recompute {}, gathers ahead {}, stages {}",
                          family,
                          run.float8.has_value(),
                          run.recompute,
                          run.gathers_ahead,
                          run.pipeline.layers.size()));
      const RankResult expected = run_ranks(run);
      run.tensor_beside = true;
      EXPECT_GT(num_on_tensor_stream(rank_programs(run)[0]), 0);
      const RankResult found = run_ranks(run);
      EXPECT_EQ(found.losses, expected.losses);
      EXPECT_EQ(found.grad_norms, expected.grad_norms);
      EXPECT_EQ(found.sent, expected.sent);
    }
  }
}

// Models and layouts that nobody chose.
TEST(TensorBeside, ChangesNoBitOfRandomRuns) {
  int found = 0;
  for (std::uint64_t seed = 0; found < 8; ++seed) {
    Draw draw(seed);
    RankRun run = draw_run(draw);
    run.overlap = draw.one_in(2);
    run.recompute = draw.one_in(3);
    run.tensor_beside = true;
    const auto programs = rank_programs(run);
    if (num_on_tensor_stream(programs[0]) == 0) {
      continue;
    }
    ++found;
    const RankResult beside = run_ranks(run);
    run.tensor_beside = false;
    expect_equal(run_ranks(run), beside, text(run));
  }
}

}  // namespace
}  // namespace tessera
