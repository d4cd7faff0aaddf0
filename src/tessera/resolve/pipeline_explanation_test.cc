// What is said, and decided, of runs whose pipeline ranks have programs of their own, which are
// made by hand here.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/backend/null/null_backend.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/units.h"
#include "tessera/config/config.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/plan/compile.h"
#include "tessera/resolve/explain.h"
#include "tessera/resolve/explain_pipeline.h"
#include "tessera/resolve/explanation.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/run_memory.h"
#include "tessera/state/test_training.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::int64_t kMore = std::int64_t{1} << 20U;

PlannedRun run_of(const Target& target, std::int64_t pipeline, ModelDescription model) {
  PlannedRun run = {
      .plan = {.model = std::move(model), .sequence_length = 16, .num_microbatches = 2},
      .target = target,
      .saves_in_background = true};
  run.plan.layout.mesh =
      make_mesh(test_cluster({2, 2, 2}), {.data = 2, .tensor = 2, .pipeline = pipeline});
  run.plan.layout.placement = preset("zero1", run.plan.layout.mesh).placement;
  return run;
}

// The last pipeline rank has the embedding and the head, and `more` bytes.
RunPrograms halves(const PlannedRun& run, std::int64_t more) {
  std::vector<Programs> programs;
  for (const bool last : {false, true}) {
    Programs& half = programs.emplace_back(compile(run.plan, run.target));
    std::erase_if(half.step.states, [&](const StateBinding& state) {
      return state.state.parameter.starts_with("layers.") == last;
    });
    half.step.arena_bytes += last ? more : 0;
  }
  return {run.plan.layout.mesh, std::move(programs)};
}

TEST(PipelineMemory, IsOfThePipelineRankThatTakesMost) {
  const PlannedRun run = run_of(cpu_target(), 2, tiny_llama());
  const RunPrograms programs = halves(run, kMore);
  const RunMemory memory = run_memory(run, programs);
  EXPECT_EQ(memory.pipeline_rank, 1U);
  EXPECT_EQ(memory.arena, programs[1].arena_bytes());
  ASSERT_EQ(memory.by_pipeline_rank.size(), 2U);
  EXPECT_EQ(memory.by_pipeline_rank[1], memory.total());
  // Their parts of a checkpoint are together that of a rank that has all, but for what the copy of
  // each is rounded up to.
  const PlannedRun whole = run_of(cpu_target(), 1, tiny_llama());
  const std::int64_t all = run_memory(whole, compile(whole.plan, whole.target)).checkpoint_copy;
  std::int64_t copies = 0;
  for (std::size_t place = 0; place < 2; ++place) {
    const std::int64_t copy = memory.by_pipeline_rank[place] - programs[place].arena_bytes();
    EXPECT_GT(copy, 0);
    EXPECT_LE(copy, all);
    copies += copy;
  }
  EXPECT_GE(copies, all);
  PlannedRun unsaved = run;
  unsaved.saves_in_background = false;
  EXPECT_THAT(run_memory(unsaved, programs).by_pipeline_rank,
              ElementsAre(programs[0].arena_bytes(), programs[0].arena_bytes() + kMore));
  EXPECT_EQ(run_memory(run, halves(run, -kMore / 8)).pipeline_rank, 0U);
}

TEST(PipelineMemory, HasALineForEach) {
  const PlannedRun run = run_of(cpu_target(), 2, tiny_llama());
  const RunMemory memory = run_memory(run, halves(run, kMore));
  const auto line = [&](std::size_t place) {
    return format("\n  pipeline {}   {:>12}  ({} bytes in all",
                  place,
                  format_bytes(memory.by_pipeline_rank[place]),
                  format_grouped(memory.by_pipeline_rank[place]));
  };
  EXPECT_THAT(memory_table(memory),
              AllOf(HasSubstr(line(0) + ")\n"),
                    HasSubstr(line(1) + ", the most: the lines above are of its ranks)\n")));
  const PlannedRun whole = run_of(cpu_target(), 1, tiny_llama());
  EXPECT_THAT(memory_table(run_memory(whole, compile(whole.plan, whole.target))),
              Not(HasSubstr("pipeline")));
}

TEST(PipelineMemory, DecidesWhetherTheRunFits) {
  const PlannedRun run = run_of(cpu_target(), 2, tiny_llama());
  const RunPrograms programs = halves(run, kMore);
  const RunMemory memory = run_memory(run, programs);
  require_fits(programs, run, RunConfig(), memory.total());
  EXPECT_GT(memory.total(), memory.by_pipeline_rank[0]);
  EXPECT_NE(allocate_arenas(*make_null_backend(), programs, run, 7).device, nullptr);
}

// Its schedule is of so many microbatches: no others are advised.
TEST(PipelineMemory, AdviceKeepsTheMicrobatches) {
  RunConfig config;
  config.model.flavor = "debug";
  config.parallel = {.ranks = 2, .data = 1, .pipeline = 2};
  config.train.global_batch = 8;
  config.train.microbatch = 4;
  config.memory.recompute = Recompute::kNone;
  const PlannedRun run = plan_run(config, resolve_model(config), cpu_target());
  const RunPrograms programs = compile_run(run.plan, run.target);
  EXPECT_THAT(error_of(ErrorCode::kOutOfMemory, [&] { require_fits(programs, run, config, 1000); }),
              AllOf(HasSubstr("memory.recompute"), Not(HasSubstr("train.microbatch"))));
}

// The machine of the last ranks saves most where these have the vocabulary. None has so much.
TEST(PipelineMemory, OfAHostIsThatOfTheMachineThatSavesMost) {
  const PlannedRun run = run_of(cuda_target(),
                                2,
                                describe_llama({.dim = 64,
                                                .layers = 1,
                                                .heads = 2,
                                                .kv_heads = 2,
                                                .ffn = 96,
                                                .vocab = std::int64_t{1} << 40U}));
  EXPECT_THAT(error_of(ErrorCode::kOutOfMemory,
                       [&] { require_fits(halves(run, 0), run, RunConfig(), INT64_MAX); }),
              StartsWith("the state is saved from the host's memory, of which it needs "));
}

// An explanation of one rank, made one of two pipeline ranks.
Explanation explained() {
  RunConfig config;
  config.model.flavor = "debug";
  config.train.global_batch = 8;
  config.train.microbatch = 8;
  Explanation facts = explain(config);
  facts.run.plan.layout.mesh = make_mesh(test_cluster({2}), {.pipeline = 2});
  Programs larger = facts.programs[0];
  larger.step.arena_bytes += kMore;
  facts.programs = RunPrograms(facts.layout().mesh, {facts.programs[0], larger});
  facts.memory = run_memory(facts.run, facts.programs);
  facts.work.push_back(facts.work[0]);
  facts.work[1].cost.flop *= 2;
  return facts;
}

RunConfig pipeline_config(std::int64_t microbatches) {
  RunConfig config;
  config.model.flavor = "debug";  // 6 layers
  config.train.global_batch = microbatches;
  config.parallel.pipeline = 2;
  return config;
}

TEST(PipelineExplanation, TellsOfEachPipelineRank) {
  const Explanation facts = explained();
  const std::string text = summary_text(facts);
  for (std::size_t place = 0; place < 2; ++place) {
    EXPECT_THAT(text,
                HasSubstr(format("\nwork of a step on a rank of pipeline rank {}: {}FLOP;",
                                 place,
                                 format_count(facts.work[place].cost.flop))));
    EXPECT_THAT(ops_text(facts),
                HasSubstr(format("work of a step on a rank of pipeline rank {}, by op", place)));
  }
  EXPECT_THAT(text, HasSubstr("\nmemory of a rank of pipeline rank 1 at its peak, by category\n"));
}

// Where checkpoints are written from lies on the host of a cluster's devices: the rank with the
// largest arena needs most of these, not the one that saves most.
TEST(PipelineExplanation, TellsOfTheMemoryOfOneRank) {
  const TestDirectory directory;
  const std::string cluster = (directory.path() / "cluster.toml").string();
  for (const char* const of_device : {"\"1 GiB\"", "0"}) {
    write_test_file(cluster,
                    format(R"(name = "small"
[device]
name = "chip"
memory = {}
memory_bandwidth = 0
peak = {{ f32 = 0, bf16 = 0 }}
[[levels]]
name = "node"
size = 2
bandwidth = "1 GB/s"
latency = "1 us"
)",
                           of_device));
    RunConfig config = pipeline_config(8);
    config.cluster.file = cluster;
    // The head and its state on the last rank, all activations on the first.
    config.pipeline.layers = {{6, 0}};
    const Explanation facts = explain(config);
    const RunMemory& memory = facts.memory;
    EXPECT_EQ(facts.fit.needed, memory.total());
    EXPECT_EQ(facts.fit.needed, memory.by_pipeline_rank.at(memory.pipeline_rank));
    EXPECT_EQ(facts.fit.needed, std::ranges::max(memory.by_pipeline_rank));
    EXPECT_EQ(memory.on_device, facts.device.memory_bytes > 0);
    const std::string text = summary_text(facts);
    EXPECT_THAT(text,
                HasSubstr(format("needs {} on a rank of pipeline rank {}",
                                 format_bytes(facts.fit.needed),
                                 memory.pipeline_rank)));
    EXPECT_THAT(text,
                HasSubstr(format("memory of a rank of pipeline rank {} at its peak",
                                 memory.pipeline_rank)));
  }
}

TEST(PipelineExplanation, SaysWhatWaitsAndWhatIsHeld) {
  RunConfig config = pipeline_config(8);
  config.pipeline.layers = {{3, 3}};
  const Explanation facts = explain(config);
  const std::string text = summary_text(facts);
  EXPECT_THAT(text, HasSubstr("\npipeline: 1f1b, 8 microbatches; 2 stages of 3, 3 layers\n"));
  EXPECT_THAT(text, HasSubstr("; 11.1 % if stages were equal\n"));
  EXPECT_THAT(text, HasSubstr("  in flight at most: forwards of 2, 1 by rank\n"));
  // One value of f32 per token, each way, for each microbatch.
  const std::int64_t bytes = std::int64_t{4} * 8 * 512 * *facts.config.model.dim;
  EXPECT_THAT(text,
              HasSubstr(format("  boundaries: a rank sends up to {} over local in a step\n",
                               format_bytes(bytes))));
  const auto json = nlohmann::json::parse(explanation_json(facts, false)).at("pipeline");
  EXPECT_EQ(json.at("schedule"), "1f1b");
  EXPECT_EQ(json.at("stages").size(), 2U);
  EXPECT_EQ(json.at("ranks")[0].at("forwards_held"), 2);
  EXPECT_GT(json.at("bubble"), json.at("imbalance"));
}

// In the dtype of the residual; of tensor ranks that share its tokens each sends its own.
TEST(PipelineExplanation, CountsTheBytesOfABoundary) {
  RunConfig config = pipeline_config(8);
  const auto sent = [&](std::int64_t bytes_per_value) {
    const Explanation facts = explain(config);
    const std::int64_t bytes = bytes_per_value * 8 * 512 * *facts.config.model.dim;
    return std::pair(
        summary_text(facts),
        format("  boundaries: a rank sends up to {} over local in a step\n", format_bytes(bytes)));
  };
  config.train.dtype = DType::kBF16;
  const auto [half, of_half] = sent(2);
  EXPECT_THAT(half, HasSubstr(of_half));
  config.parallel.tensor = 2;
  config.parallel.sequence_parallel = false;
  const auto [whole, of_whole] = sent(2);
  EXPECT_THAT(whole, HasSubstr(of_whole));
  config.parallel.sequence_parallel = true;
  const auto [shared, of_shared] = sent(1);
  EXPECT_THAT(shared, HasSubstr(of_shared));
}

// A cluster of two devices that compute a million times as fast as their link is.
std::string cluster_text(const char* peak) {
  return format(
      "name = \"two\"\n[device]\nname = \"fast\"\nmemory = \"80 GB\"\n"
      "memory_bandwidth = \"1 TB/s\"\npeak = {{ f32 = {}, bf16 = {} }}\n"
      "[[levels]]\nname = \"link\"\nsize = 2\nbandwidth = \"1 MB/s\"\nlatency = \"2 ms\"\n",
      peak,
      peak);
}

TEST(PipelineExplanation, CountsLinksWhereTheirSpeedIsKnown) {
  const TestDirectory directory;
  RunConfig config = pipeline_config(8);
  const Explanation without = explain(config);
  EXPECT_EQ(without.run.hop, 0.0);
  EXPECT_THAT(summary_text(without), Not(HasSubstr("a hop takes")));
  config.cluster.file = directory.path() / "known.toml";
  std::ofstream(config.cluster.file) << cluster_text("\"1 TFLOP/s\"");
  const Explanation known = explain(config);
  // A microbatch's residual, of f32.
  const double bytes = 4.0 * 512 * static_cast<double>(*known.config.model.dim);
  EXPECT_DOUBLE_EQ(known.run.hop, 2e-3 + bytes / 1e6);
  EXPECT_THAT(summary_text(known),
              HasSubstr(format("in a step; a hop takes {:.3g} ms\n", 1e3 * known.run.hop)));
  // Each of eight microbatches and the two ends of a step wait for hops that take longer than work.
  const auto json = nlohmann::json::parse(explanation_json(known, false)).at("pipeline");
  EXPECT_EQ(json.at("hop"), known.run.hop);
  EXPECT_GT(json.at("makespan"), 8 * known.run.hop);
  config.cluster.file = directory.path() / "unknown.toml";
  std::ofstream(config.cluster.file) << cluster_text("0");
  const Explanation unknown = explain(config);
  EXPECT_EQ(unknown.run.hop, 0.0);
  EXPECT_EQ(unknown.run.stage_costs, without.run.stage_costs);
}

// As much goes over a boundary, in more pieces.
TEST(PipelineExplanation, SaysWhatIsHeldOfSlices) {
  RunConfig config = pipeline_config(2);
  config.pipeline.layers = {{3, 3}};
  config.pipeline.slices = 4;
  const Explanation facts = explain(config);
  const std::string text = summary_text(facts);
  EXPECT_THAT(text,
              HasSubstr("\npipeline: 1f1b, 2 microbatches in slices of 144, 128, 128, 112 tokens; "
                        "2 stages of 3, 3 layers\n"));
  // 3 of the ticks of a slice, of 3 * 8 + 3.
  EXPECT_THAT(text, HasSubstr("; 11.1 % if stages were equal\n"));
  EXPECT_THAT(text, HasSubstr("  in flight at most: forwards of slices: 5, 4 by rank\n"));
  const std::int64_t bytes = std::int64_t{4} * 2 * 512 * *facts.config.model.dim;
  EXPECT_THAT(text,
              HasSubstr(format("  boundaries: a rank sends up to {} over local in a step\n",
                               format_bytes(bytes))));
  EXPECT_EQ(nlohmann::json::parse(explanation_json(facts, false)).at("pipeline").at("slices"),
            (std::vector{144, 128, 128, 112}));
  EXPECT_EQ(facts.memory.arena, facts.programs[facts.memory.pipeline_rank].arena_bytes());
}

TEST(PipelineExplanation, ShowsTheSchedule) {
  const Explanation facts = explain(pipeline_config(2));
  EXPECT_EQ(schedule_csv(facts), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_THAT(schedule_text(facts, 80), AllOf(StartsWith("rank 0  0F0"), HasSubstr("\nrank 1  .")));
  EXPECT_THAT(schedule_gantt(facts), StartsWith("<svg "));
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [] { schedule_csv(explained()); }),
              HasSubstr("no pipeline"));
}

TEST(PipelineExplanation, HasAnObjectOfEachAsJson) {
  const Explanation facts = explained();
  const auto json = nlohmann::json::parse(explanation_json(facts, true));
  ASSERT_EQ(json.at("pipeline_ranks").size(), 2U);
  for (std::size_t place = 0; place < 2; ++place) {
    const auto& rank = json.at("pipeline_ranks")[place];
    EXPECT_EQ(rank.at("first_rank"), place);
    EXPECT_EQ(rank.at("needed"), facts.memory.by_pipeline_rank[place]);
    EXPECT_EQ(rank.at("work").at("flop"), facts.work[place].cost.flop);
    EXPECT_EQ(rank.at("program"), to_string(facts.programs[place].step));
  }
  EXPECT_EQ(json.at("memory").at("arena"), facts.programs[1].arena_bytes());
  EXPECT_FALSE(nlohmann::json::parse(explanation_json(explain(facts.config), true))
                   .contains("pipeline_ranks"));
}

}  // namespace
}  // namespace tessera
