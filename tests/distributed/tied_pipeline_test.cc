// Models whose embedding is their head, cut into stages of which the first has the one and the last
// the other: they train bit by bit as without a pipeline.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/autodiff/differentiate.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/passes/stages/cut_stages.h"
#include "tessera/passes/stages/tied_parameters.h"
#include "tessera/plan/graphs.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/verify_ranks.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Layers = std::vector<std::int64_t>;

constexpr const char* kTable = "tok_embeddings.weight";

Mesh mesh_of(const MeshDegrees& degrees) {
  return make_mesh(local_cluster(degrees.data * degrees.tensor * degrees.pipeline), degrees);
}

// Of three layers.
RankRun tied_run(std::string_view model, std::int64_t microbatches) {
  RankRun run = {.model = odd_llama(),
                 .mesh = mesh_of({}),
                 .microbatches = microbatches,
                 .global_batch = 4 * microbatches,
                 .sequence_length = 8,
                 .steps = 3};
  run.model.tied = true;
  run.model.kv_heads = 2;
  if (model != "llama3") {
    run.other = odd_model(std::string(model).c_str());
  }
  return run;
}

RankRun in_stages(RankRun run, const MeshDegrees& degrees, const Layers& layers) {
  MeshDegrees all = degrees;
  all.pipeline = std::ssize(layers);
  run.mesh = mesh_of(all);
  run.pipeline.layers = layers;
  return run;
}

struct TiedCase {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  Layers layers;
};

// A pipeline of each schedule: "1f1b" on two ranks where a tensor is cut.
std::vector<TiedCase> tied_cases(Draw& draw, std::int64_t tensor) {
  using enum PipelineSchedule;
  const std::vector<Layers> any = {{2, 1}, {1, 1, 1}, {1, 1, 1, 0}};
  return {{.schedule = k1F1B, .layers = tensor == 2 ? any[0] : draw.one_of(any)},
          {.schedule = kGPipe, .layers = draw.one_of(any)},
          {.schedule = kZbV, .layers = draw.one_of<Layers>({{0, 1, 1, 1}, {1, 1, 0, 1}})}};
}

// Overlap and layers are drawn.
TEST(TiedPipeline, TrainsAsWithoutAPipeline) {
  Draw draw(23);
  std::set<std::pair<std::int64_t, bool>> overlaps;
  for (const char* const model : {"llama3", "gpt2"}) {
    for (const std::int64_t microbatches : {1, 3}) {
      for (const char* const placement : {"ddp", "zero1", "fsdp"}) {
        for (const std::int64_t tensor : {1, 2}) {
          RankRun alone = tied_run(model, microbatches);
          const MeshDegrees degrees = {.data = 2, .tensor = tensor};
          alone.mesh = mesh_of(degrees);
          alone.placement = preset(placement, alone.mesh).placement;
          alone.overlap = draw.one_in(2);
          overlaps.emplace(tensor, alone.overlap);
          const RankResult expected = run_ranks(alone);
          for (const auto& [schedule, layers] : tied_cases(draw, tensor)) {
            const std::int64_t ranks = std::ssize(layers) / default_chunks(schedule);
            RankRun run = alone;
            run.mesh = mesh_of({.data = 2, .tensor = tensor, .pipeline = ranks});
            run.pipeline = {.layers = layers, .schedule = schedule};
            expect_equal(run_ranks(run),
                         expected,
                         format("{}, {} microbatches, {}, tensor {}, {} ranks, {}, overlap {}",
                                model,
                                microbatches,
                                placement,
                                tensor,
                                ranks,
                                name(schedule),
                                alone.overlap));
          }
        }
      }
    }
  }
  EXPECT_EQ(overlaps.size(), 4U);
}

bool is_tied(const RankRun& run) {
  const Graph graph = training_graph(description(run), 1, 2, DType::kF32);
  const std::vector<std::vector<NodeId>> readers = users(graph);
  return std::ranges::any_of(graph.sources(ValueKind::kParameter),
                             [&](ValueId parameter) { return readers[parameter.at()].size() > 1; });
}

Wire draw_wire(Draw& draw, std::size_t levels) {
  Wire wire{.formats = {}, .block = draw.one_of<std::int64_t>({2, 16, 64, 256})};
  for (std::size_t i = draw.one_of<std::size_t>({0, 1, levels}); i > 0; --i) {
    wire.formats.push_back(draw.one_of<WireFormat>(
        {WireFormat::kF32, WireFormat::kBF16, WireFormat::kInt8, WireFormat::kInt4}));
  }
  return wire;
}

void draw_training(Draw& draw, RankRun& run) {
  run.microbatches = draw.between(1, 3);
  run.sequence_length = draw.between(2, 12);
  run.steps = 3;
  run.dtype = draw.one_in(3) ? DType::kBF16 : DType::kF32;
  run.moments = draw.one_in(5) ? DType::kBF16 : DType::kF32;
  run.overlap = draw.one_in(2);
  run.recompute = draw.one_in(3);
  if (draw.one_in(4)) {
    run.other.adapters = {.rank = 2, .alpha = 4.0, .targets = {"wq", "wk", "w1", "w2"}};
  }
  if (draw.one_in(4)) {
    run.float8 = {
        .rowwise = draw.one_in(2), .head = draw.one_in(2), .keep_weight_codes = draw.one_in(2)};
  }
}

void draw_states(Draw& draw, RankRun& run) {
  run.placement = draw_placement(draw, run.mesh);
  run.secondary_use = draw.one_of<SecondaryUse>({SecondaryUse::kAll, SecondaryUse::kBackward});
  if (draw.one_in(2)) {
    const std::size_t levels = data_levels(run.mesh).size();
    run.wires = {.param = draw_wire(draw, levels),
                 .secondary = draw_wire(draw, levels),
                 .grad = draw_wire(draw, levels),
                 .update = draw_wire(draw, levels)};
  }
}

Layers draw_layers(Draw& draw, std::int64_t stages, std::int64_t layers) {
  Layers result(static_cast<std::size_t>(stages), 0);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    ++result[static_cast<std::size_t>(draw.between(0, stages - 1))];
  }
  return result;
}

// A schedule that takes the run's microbatches, of which "dualpipe-v" wants more.
PipelineSchedule draw_schedule(Draw& draw, std::int64_t ranks, std::int64_t& microbatches) {
  const PipelineSchedule schedule = kPipelineSchedules.at(
      static_cast<std::size_t>(draw.between(0, std::ssize(kPipelineSchedules) - 1)));
  if (schedule == PipelineSchedule::kDualPipeV) {
    microbatches = std::max(microbatches, 2 * ranks);
  }
  return schedule;
}

// Any schedule, family, placement, wires, adapters over frozen weights, 8-bit products.
class RandomPipelines : public testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds,
                         RandomPipelines,
                         testing::Range<std::uint64_t>(0, num_drawn("TESSERA_RUNS", 16)));

TEST_P(RandomPipelines, TrainAsWithoutAPipeline) {
  Draw draw(GetParam());
  const std::int64_t tensor = draw.one_of<std::int64_t>({1, 1, 2});
  std::vector<std::int64_t> levels =
      draw.one_of<std::vector<std::int64_t>>({{1}, {2}, {2, 2}, {3}});
  MeshDegrees degrees = {.tensor = tensor};
  for (const std::int64_t size : levels) {
    degrees.data *= size;
  }
  levels.insert(levels.begin(), tensor);
  RankRun alone;
  alone.mesh = make_mesh(test_cluster(levels), degrees);
  const bool wants_tied = !draw.one_in(3);
  do {
    alone.other = draw_model(draw, tensor, draw.between(tensor, 90));
  } while (wants_tied && !is_tied(alone));
  draw_training(draw, alone);
  degrees.pipeline = draw.one_of<std::int64_t>({2, 2, 3, 4});
  const PipelineSchedule schedule = draw_schedule(draw, degrees.pipeline, alone.microbatches);
  draw_states(draw, alone);
  alone.global_batch = alone.microbatches * degrees.data;
  alone.sequence_parallel = tensor > 1 && draw.one_in(2);

  RankRun run = alone;
  levels.push_back(degrees.pipeline);
  run.mesh = make_mesh(test_cluster(levels), degrees);
  const std::int64_t stages = degrees.pipeline * default_chunks(schedule);
  run.pipeline = {.layers = draw_layers(draw, stages, num_layers(alone)), .schedule = schedule};
  expect_equal(run_ranks(run), run_ranks(alone), text(run));
}

// What is sent at the start of the step after it are the weights of before.
TEST(TiedPipeline, KeepsTheWeightsOfAStepThatIsNotApplied) {
  RankRun alone = tied_run("gpt2", 2);
  alone.unapplied_step = 1;
  const RankResult expected = run_ranks(alone);
  expect_equal(run_ranks(in_stages(alone, {}, {2, 1})), expected);
  alone.unapplied_step = 0;
  EXPECT_NE(run_ranks(alone).losses, expected.losses);
}

TEST(TiedPipeline, GoesOnAtAnotherNumberOfRanks) {
  RankRun whole = tied_run("llama3", 2);
  whole.dtype = DType::kBF16;
  whole.steps = 6;
  whole.one_batch = true;
  const RankResult expected = run_ranks(whole);
  const TestDirectory directory;
  RankResult found;
  std::filesystem::path saved;
  for (const Layers& layers : {Layers{2, 1}, {}, {1, 1, 1, 0}}) {
    RankRun part = layers.empty() ? whole : in_stages(whole, {}, layers);
    part.steps = 2;
    part.resume = saved;
    saved = directory.path() / format("after-{}", layers.size());
    part.save = saved;
    const RankResult result = run_ranks(part);
    found.losses.insert(found.losses.end(), result.losses.begin(), result.losses.end());
    found.grad_norms.insert(
        found.grad_norms.end(), result.grad_norms.begin(), result.grad_norms.end());
    found.states = result.states;
  }
  expect_equal(found, expected);
}

std::vector<Program> programs_of(const RankRun& run) {
  std::vector<Program> programs;
  const std::int64_t ranks = std::ssize(run.pipeline.layers);
  for (std::int64_t place = 0; place < ranks; ++place) {
    programs.push_back(rank_program(run, {}, place * run.mesh.num_ranks() / ranks));
  }
  return programs;
}

// By name and role, how many pipeline ranks have a state of a parameter.
std::map<std::pair<std::string, StateRole>, int> count_states(
    const std::vector<Program>& programs) {
  std::map<std::pair<std::string, StateRole>, int> counts;
  for (const Program& program : programs) {
    for (const StateBinding& state : program.states) {
      ++counts[{state.state.parameter, state.state.role}];
    }
  }
  return counts;
}

TEST(TiedPipeline, HasStatesOnceAndACopyInTheDtypeOfWeights) {
  for (const char* const placement : {"ddp", "fsdp"}) {
    RankRun alone = tied_run("gpt2", 1);
    alone.dtype = DType::kBF16;
    const MeshDegrees degrees = {.data = 2};
    alone.mesh = mesh_of(degrees);
    alone.placement = preset(placement, alone.mesh).placement;
    const std::vector<Program> programs = programs_of(in_stages(alone, degrees, {2, 0, 1}));
    auto expected = count_states({rank_program(alone, {})});
    expected[{kTable, StateRole::kSecondary}] = 1;
    EXPECT_EQ(count_states(programs), expected);
    const StateBinding* const own = find_state(programs[0], kTable, StateRole::kParameter);
    const StateBinding* const copy = find_state(programs[2], kTable, StateRole::kSecondary);
    ASSERT_TRUE(own != nullptr && copy != nullptr);
    EXPECT_EQ(copy->tensor.type, own->tensor.type);
    EXPECT_EQ(copy->tensor.type.dtype, DType::kBF16);
    EXPECT_EQ(find_state(programs[2], kTable, StateRole::kMaster), nullptr);
  }
}

TEST(TiedPipeline, MovesNothingBetweenStagesOfOneRank) {
  Graph graph = training_graph(describe_llama(tied_run("llama3", 1).model), 1, 4, DType::kF32);
  graph = differentiate(std::move(graph), GradientUses::kApart);
  const auto tied = [&](const std::vector<std::int64_t>& rank_of_stage) {
    const PipelineCut cut = {.axes = {{.name = "pipeline", .size = 2}},
                             .layers = {1, 1, 1, 0},
                             .rank_of_stage = rank_of_stage};
    return tied_parameters(graph, cut, {}, {}).parameters;
  };
  EXPECT_TRUE(tied({0, 1, 1, 0}).empty());
  const std::vector<TiedParameter> found = tied({0, 1, 0, 1});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].name, kTable);
  EXPECT_EQ(found[0].owner, 0);
  EXPECT_THAT(found[0].ranks_of_uses, ::testing::ElementsAre(0, 1));
}

// What is wrong with the transfers of a pipeline's ranks on one data rank; nothing: "".
std::string fault_of(const RankRun& run, const std::vector<Program>& programs, bool one_queue) {
  std::vector<CollectiveSequence> classes;
  std::vector<std::size_t> class_of;
  for (const Program& program : programs) {
    const CollectiveSequence calls = collective_calls(program);
    class_of.push_back(classes.size());
    classes.push_back(one_queue ? in_one_queue(calls) : calls);
  }
  try {
    verify_ranks(run.mesh, classes, class_of);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void drop_calls(Program& program, std::string_view segment) {
  const std::size_t before = program.calls.size();
  std::erase_if(program.calls,
                [&](const Call& call) { return program[call.segment].name == segment; });
  EXPECT_LT(program.calls.size(), before);
}

TEST(TiedPipeline, HasTransfersThatMeet) {
  for (const std::int64_t microbatches : {1, 2, 5}) {
    for (const Layers& layers : {Layers{2, 1}, {1, 1, 1}, {1, 1, 1, 0}}) {
      for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
        RankRun run = in_stages(tied_run("gpt2", microbatches), {}, layers);
        run.pipeline.schedule = schedule;
        EXPECT_EQ(fault_of(run, programs_of(run), false), "");
        run.pipeline.launch = TransferLaunch::kInOneQueue;
        EXPECT_EQ(fault_of(run, programs_of(run), true), "");
      }
    }
  }
}

TEST(TiedPipeline, IsRefusedWhereATransferIsMissing) {
  const RankRun run = in_stages(tied_run("gpt2", 2), {}, {2, 1});
  const std::vector<Program> programs = programs_of(run);
  const auto fault = [&](std::size_t rank, std::string_view segment) {
    std::vector<Program> mutated = programs;
    drop_calls(mutated[rank], segment);
    return fault_of(run, mutated, false);
  };
  EXPECT_THAT(fault(0, "start.send"),
              AllOf(HasSubstr("a rank misses a collective"),
                    HasSubstr("rank 1 on stream receive.step at segment start.receive")));
  EXPECT_THAT(fault(1, "start.receive"),
              HasSubstr("rank 0 on stream send.step at segment start.send"));
  EXPECT_THAT(fault(1, "update.send"),
              HasSubstr("rank 0 on stream receive.step at segment update.receive"));
  EXPECT_THAT(fault(0, "update.receive"),
              HasSubstr("rank 1 on stream send.step at segment update.send"));
}

TEST(TiedPipeline, IsRefusedWhereAWaitIsMissing) {
  const std::vector<Program> programs = programs_of(in_stages(tied_run("gpt2", 2), {}, {2, 1}));
  // Without the waits for the events that `segment` signals.
  const auto fault = [&](std::size_t rank, std::string_view segment) {
    Program program = programs[rank];
    const auto found = std::ranges::find(program.segments, segment, &Segment::name);
    const std::vector<EventId> events = found->instructions.at(0).signals;
    for (Segment& waiting : program.segments) {
      for (Instruction& instruction : waiting.instructions) {
        std::erase_if(instruction.waits,
                      [&](EventId event) { return std::ranges::count(events, event) > 0; });
      }
    }
    return error_of(ErrorCode::kInternal, [&] { verify(program); });
  };
  EXPECT_THAT(fault(1, "start.receive"),
              HasSubstr("\"copy.tok_embeddings.weight\" was written on stream receive.step without "
                        "an event in between"));
  EXPECT_THAT(fault(0, "start.send"),
              HasSubstr("\"tok_embeddings.weight\" was read on stream send.step without an event "
                        "in between"));
  EXPECT_THAT(fault(0, "update.receive"),
              HasSubstr("was written on stream receive.step without an event in between"));
}

}  // namespace
}  // namespace tessera
