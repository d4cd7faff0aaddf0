#include "tessera/actions/split_layers.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/as_index.h"
#include "tessera/actions/csv.h"
#include "tessera/actions/schedules.h"
#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using enum PipelineSchedule;
using Counts = std::vector<std::int64_t>;
using testing::ElementsAre;

// Llama of 134M parameters: width 768, 12 layers, 32000 tokens. Its head costs as much as 3.3
// layers, all of it in the forward, in which the loss computes its gradients.
ModelCosts small_llama() {
  ModelCosts model;
  model.layers.resize(12);
  model.head = {.forward = 3.3 * 3, .input_gradient = 0.0, .weight_gradient = 0.0};
  return model;
}

std::int64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

double total_of(const ModelCosts& model) {
  double sum = total(model.embedding) + total(model.head);
  for (const ActionCosts& layer : model.layers) {
    sum += total(layer);
  }
  return sum;
}

// A step over one in which all ranks work all the time.
double over_ideal(const ActionTable& table, const ModelCosts& model, double makespan) {
  const auto work = static_cast<double>(table.microbatches) * total_of(model);
  return makespan / (work / static_cast<double>(table.ranks));
}

ActionTable four_ranks(PipelineSchedule schedule) {
  return make_table({schedule, 4, default_chunks(schedule), 8});
}

TEST(StageCosts, EmbeddingFirstHeadLast) {
  const ModelCosts model = {
      .layers = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}, .embedding = {0.5, 0, 0.25}, .head = {10, 0, 1}};
  EXPECT_THAT(stage_costs(model, Counts{2, 0, 1}),
              ElementsAre(ActionCosts{5.5, 7, 9.25}, ActionCosts{0, 0, 0}, ActionCosts{17, 8, 10}));
  EXPECT_THAT(stage_costs(model, Counts{3}), ElementsAre(ActionCosts{22.5, 15, 19.25}));
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { stage_costs(model, Counts{2, 2}); }),
            "2 stages with 4 layers, the model has 3");
}

TEST(StageCosts, TheHeadDecides) {
  const ModelCosts model = small_llama();
  const ActionTable table = four_ranks(k1F1B);
  const auto over = [&](const Counts& layers) {
    return over_ideal(table, model, timeline(table, stage_costs(model, layers)).makespan);
  };
  EXPECT_NEAR(over({3, 3, 3, 3}), 1.94, 0.005);
  EXPECT_NEAR(over({4, 4, 3, 1}), 1.48, 0.005);
  EXPECT_NEAR(over({4, 4, 4, 0}), 1.39, 0.005);
  // What the head costs is imbalance; the schedule's part is what 1F1B always idles, and less.
  const Timeline even = timeline(table, stage_costs(model, Counts{3, 3, 3, 3}));
  EXPECT_NEAR(imbalance(even), (18.9 - 45.9 / 4) * 8 / even.makespan, 1e-9);
  EXPECT_LT(bubble(even) - imbalance(even), 0.2727);
}

// As good as the best splits that are known, or better.
TEST(SplitLayers, SmallLlama) {
  const ModelCosts model = small_llama();
  const auto split = [&](PipelineSchedule schedule) {
    return split_layers(four_ranks(schedule), model);
  };
  const auto over = [&](PipelineSchedule schedule) {
    return over_ideal(four_ranks(schedule), model, split(schedule).makespan);
  };
  EXPECT_THAT(split(k1F1B).layers_of_stage, ElementsAre(4, 4, 4, 0));
  EXPECT_THAT(split(kZbH1).layers_of_stage, ElementsAre(4, 4, 4, 0));
  EXPECT_NEAR(over(k1F1B), 1.39, 0.005);
  EXPECT_NEAR(over(kZbH1), 1.26, 0.005);
  EXPECT_LT(over(kInterleaved), 1.455);
  EXPECT_LT(over(kZbV), 1.275);
  EXPECT_LT(over(kDualPipeV), 1.175);
}

// Calls `visit` with each way to put `layers` onto `stages`.
template <class Visit>
void for_each_split(std::int64_t stages, std::int64_t layers, Counts& counts, const Visit& visit) {
  if (stages == 1) {
    counts.push_back(layers);
    visit(counts);
    counts.pop_back();
    return;
  }
  for (std::int64_t count = 0; count <= layers; ++count) {
    counts.push_back(count);
    for_each_split(stages - 1, layers - count, counts, visit);
    counts.pop_back();
  }
}

TEST(SplitLayers, NearTheBestOfAllSplits) {
  double worst = 1.0;
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      const auto draw = [&](std::uint64_t i) { return uniform(seed, i); };
      ModelCosts model;
      for (std::uint64_t layer = 0; layer < 6; ++layer) {
        model.layers.push_back({1.0, 1.0 + draw(layer), 1.0});
      }
      model.embedding.forward = draw(10);
      model.head.forward = 8.0 * draw(11);
      const ActionTable table = make_table({schedule, 3, default_chunks(schedule), 6});
      const LayerSplit found = split_layers(table, model, 0.1 * draw(12));
      double best = found.makespan;
      Counts counts;
      for_each_split(table.stages, 6, counts, [&](const Counts& split) {
        best = std::min(best, timeline(table, stage_costs(model, split), 0.1 * draw(12)).makespan);
      });
      EXPECT_EQ(timeline(table, stage_costs(model, found.layers_of_stage), 0.1 * draw(12)).makespan,
                found.makespan);
      worst = std::max(worst, found.makespan / best);
    }
  }
  EXPECT_LT(worst, 1.04);
}

TEST(SplitLayers, ManyStages) {
  ModelCosts model;
  model.layers.resize(126);
  model.embedding = {0.2, 0.0, 0.2};
  model.head = {9.0, 0.0, 0.0};
  for (const ScheduleRequest& request :
       {ScheduleRequest{kInterleaved, 16, 4, 32}, ScheduleRequest{kZbV, 32, 2, 64}}) {
    const ActionTable table = make_table(request);
    const LayerSplit split = split_layers(table, model);
    EXPECT_EQ(split.layers_of_stage.size(), 64U);
    EXPECT_EQ(sum_of(split.layers_of_stage), 126);
    Counts even;
    for (std::int64_t i = 0; i < 64; ++i) {
      even.push_back((i + 1) * 126 / 64 - i * 126 / 64);
    }
    EXPECT_LT(split.makespan, 0.9 * timeline(table, stage_costs(model, even)).makespan);
  }
}

TEST(SplitLayers, StagesMayBeEmpty) {
  ModelCosts model;
  model.layers.resize(2);
  EXPECT_EQ(sum_of(split_layers(four_ranks(k1F1B), model).layers_of_stage), 2);
}

TEST(SplitLayers, RefusesCosts) {
  ModelCosts model;
  model.layers.resize(12);
  model.layers[7].input_gradient = -1.0;
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { split_layers(four_ranks(k1F1B), model); }),
            "a cost of -1 ticks, expected a number of at least 0");
}

TEST(SplitLayers, RefusesTooManyStages) {
  ModelCosts model;
  model.layers.resize(12);
  const auto refused = [&](const ScheduleRequest& request) {
    return error_of(ErrorCode::kInvalidConfig, [&] { split_layers(make_table(request), model); });
  };
  EXPECT_EQ(refused({kInterleaved, 4, 4, 8}),
            "16 stages, but 12 layers, an embedding and a head make at most 14: pipeline.chunks = "
            "3 or parallel.pipeline <= 3");
  EXPECT_EQ(refused({kGPipe, 16, 1, 8}),
            "16 stages, but 12 layers, an embedding and a head make at most 14: parallel.pipeline "
            "<= 14");
  EXPECT_EQ(refused({kInterleaved, 1, 16, 8}),
            "16 stages, but 12 layers, an embedding and a head make at most 14: pipeline.chunks = "
            "14");
  EXPECT_EQ(refused({kLoopedBfs, 16, 16, 1}),
            "256 stages, but 12 layers, an embedding and a head make at most 14: fewer stages");
}

TEST(SplitLayers, AdvisesSchedulesOfOneChunk) {
  ModelCosts model;
  model.layers.resize(12);
  const auto refused = [&](const ScheduleRequest& request) {
    return error_of(ErrorCode::kInvalidConfig, [&] { split_layers(make_table(request), model); });
  };
  for (const PipelineSchedule schedule : {kInterleaved, kZbV}) {
    EXPECT_EQ(refused({schedule, 8, 2, 8}),
              "16 stages, but 12 layers, an embedding and a head make at most 14: a schedule of "
              "one chunk such as pipeline.schedule = \"zb-h1\" or \"1f1b\", or parallel.pipeline "
              "<= 7");
  }
  EXPECT_EQ(refused({kInterleaved, 8, 16, 8}),
            "128 stages, but 12 layers, an embedding and a head make at most 14: a schedule of one "
            "chunk such as pipeline.schedule = \"zb-h1\" or \"1f1b\"");
}

TEST(SplitLayers, AdvisesFewerStagesOfRanksThatDiffer) {
  ModelCosts model;
  model.layers.resize(2);
  const ActionTable table =
      parse_table("0F0,0B0\n1F0,2F0,3F0,4F0,4B0,3B0,2B0,1B0\n", "table.csv").table;
  EXPECT_EQ(error_of(ErrorCode::kInvalidConfig, [&] { split_layers(table, model); }),
            "5 stages, but 2 layers, an embedding and a head make at most 4: fewer stages");
}

}  // namespace
}  // namespace tessera
