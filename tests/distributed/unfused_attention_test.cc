// Attention in several ops, as other systems run it, trains as the one op does; dropout's masks do
// not depend on the layout.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/models/family.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

constexpr AttentionKernels kSeveralOps[] = {AttentionKernels::kFusedSoftmax,
                                            AttentionKernels::kUnfused};

// Several documents in a sequence.
RankRun unfused_run(const ModelDescription& model) {
  return {.model = odd_llama(),
          .other = model,
          .mesh = local_mesh({}),
          .microbatches = 2,
          .global_batch = 8,
          .document_length = 7,
          .steps = 3};
}

ModelDescription described(const ModelSection& section) {
  const ModelFamily& family = model_family(section.name);
  return family.describe(family.resolve(section));
}

ModelDescription gpt(bool bias, bool alibi, bool squared_relu) {
  return described({.name = "gpt2",
                    .dim = 48,
                    .layers = 4,
                    .heads = 4,
                    .ffn = 28,
                    .vocab = 67,
                    .bias = bias,
                    .alibi = alibi,
                    .squared_relu = squared_relu});
}

// With grouped queries; a Gemma 2 has windows and caps its scores.
ModelDescription grouped(const char* name) {
  const bool is_gemma = std::string(name) == "gemma2";
  return described({.name = name,
                    .dim = 48,
                    .layers = 3,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 12,
                    .ffn = 27,
                    .vocab = 67,
                    .window = is_gemma ? std::optional<std::int64_t>(5) : std::nullopt,
                    .attention_softcap = is_gemma ? std::optional(3.0) : std::nullopt});
}

// Data ranks, tensor ranks with and without their parts of sequences, a pipeline, and all of them.
std::vector<RankRun> layouts_of(const RankRun& alone) {
  std::vector<RankRun> runs;
  for (const bool sequence_parallel : {false, true}) {
    RankRun run = alone;
    run.mesh = virtual_mesh(2, 2);
    run.sequence_parallel = sequence_parallel;
    runs.push_back(run);
  }
  RankRun data = alone;
  data.mesh = virtual_mesh(2);
  data.placement = {.param = 2, .secondary = 2, .grad = 2, .optimizer = 2};
  runs.push_back(data);
  RankRun pipeline = alone;
  pipeline.mesh = local_mesh({.pipeline = 2});
  pipeline.pipeline = {.layers = {num_layers(alone) - 1, 1}};
  runs.push_back(pipeline);
  RankRun all = alone;
  all.mesh = local_mesh({.data = 2, .tensor = 2, .pipeline = 2});
  all.pipeline = pipeline.pipeline;
  runs.push_back(all);
  return runs;
}

std::string text_of(const RankRun& run) {
  return format("{} ranks, {} data ranks, sequence_parallel={} ",
                run.mesh.num_ranks(),
                data_degrees(run.mesh).back(),
                run.sequence_parallel);
}

TEST(UnfusedAttention, TrainsAsOneOpDoes) {
  std::vector<ModelDescription> models = {grouped("llama3"), odd_model("gpt2"), grouped("gemma2")};
  for (std::size_t i = 0; i < models.size(); ++i) {
    RankRun run = unfused_run(models[i]);
    const RankResult expected = run_ranks(run);
    for (const AttentionKernels kernels : kSeveralOps) {
      run.attention = kernels;
      const RankResult found = run_ranks(run);
      expect_close(found, expected, format("model {}, {}", i, to_string(kernels)));
      run.recompute = true;
      expect_equal(run_ranks(run), found, format("model {}, recomputed", i));
      run.recompute = false;
    }
  }
}

TEST(UnfusedAttention, TrainsAlikeOnAnyLayout) {
  const RankRun alone = unfused_run(grouped("llama3"));
  const RankResult expected = run_ranks(alone);
  for (const AttentionKernels kernels : kSeveralOps) {
    for (RankRun& run : layouts_of(alone)) {
      run.attention = kernels;
      expect_close(run_ranks(run), expected, text_of(run) + to_string(kernels));
    }
  }
}

TEST(UnfusedAttention, DropoutHasOneMaskOnAnyLayout) {
  RankRun alone = unfused_run(odd_model("gpt2"));
  alone.attention = AttentionKernels::kFusedSoftmax;
  const RankResult without = run_ranks(alone);
  alone.dropout = 0.0;
  expect_equal(run_ranks(alone), without, "a rate of 0");
  alone.dropout = 0.2;
  const RankResult dropped = run_ranks(alone);
  for (std::size_t i = 0; i < dropped.losses.size(); ++i) {
    EXPECT_GT(std::abs(dropped.losses[i] - without.losses[i]), 1e-4F * without.losses[i]);
  }
  for (RankRun& run : layouts_of(alone)) {
    expect_close(run_ranks(run), dropped, text_of(run));
  }
  alone.recompute = true;
  for (const RecomputeKept kept : kRecomputeKept) {
    alone.kept = kept;
    expect_equal(run_ranks(alone), dropped, format("recomputed, {} kept", name(kept)));
  }
}

TEST(UnfusedAttention, RelativesOfGptTrainAlikeOnAnyLayout) {
  std::vector<float> losses;
  for (const ModelDescription& model :
       {gpt(true, false, false), gpt(false, false, false), gpt(false, true, true)}) {
    const RankRun alone = unfused_run(model);
    const RankResult expected = run_ranks(alone);
    losses.push_back(expected.losses.back());
    for (const RankRun& run : layouts_of(alone)) {
      expect_close(run_ranks(run), expected, text_of(run) + model.json);
    }
  }
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_NE(losses[1], losses[2]);
}

}  // namespace
}  // namespace tessera
