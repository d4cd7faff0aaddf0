// What simulated ranks send is what their programs do, axis by axis and level by level.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/mesh/placement.h"
#include "tessera/ops/op.h"
#include "tessera/program/operand_types.h"
#include "tessera/program/step_traffic.h"
#include "tessera/simulate/attribution.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/simulated_ranks.h"

namespace tessera {
namespace {

using BytesSent = std::map<std::string, double>;

BytesSent sums(const Traffic& traffic) {
  BytesSent sent;
  for (const auto& [where, bytes] : traffic) {
    const std::int64_t sum = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
    if (sum > 0) {
      sent[where] = static_cast<double>(sum);
    }
  }
  return sent;
}

void add(BytesSent& sent, const std::string& where, double bytes) {
  if (bytes > 0.0) {
    sent[where] += bytes;
  }
}

// By the pieces of all steps.
BytesSent sent_by_level(const TimedProgram& program, const Cluster& cluster) {
  BytesSent sent;
  for (const IssueStep& step : program.order.steps) {
    for (const Piece& piece : program.pieces_of(step)) {
      if (step.works && piece.is_leg()) {
        add(sent, cluster.levels.at(piece.level).name, piece.sent);
      }
    }
  }
  return sent;
}

// Of collectives, by axis; of transfers all in one, "".
BytesSent sent_by_axis(const Attribution& causes, const Mesh& mesh) {
  BytesSent sent;
  for (const LinkRow& row : causes.links) {
    add(sent, row.is_transfer ? "" : mesh.axes.at(row.where).name, row.sent);
  }
  return sent;
}

// What goes along the axes of a pipeline is of collectives and of transfers.
BytesSent with_pipeline_as_one(const BytesSent& by_axis, const Mesh& mesh) {
  BytesSent sent;
  for (const auto& [name, bytes] : by_axis) {
    const auto axis = std::ranges::find(mesh.axes, name, &MeshAxis::name);
    const bool is_of_pipeline = axis == mesh.axes.end() || axis->group == AxisGroup::kPipeline;
    add(sent, is_of_pipeline ? "pipeline" : name, bytes);
  }
  return sent;
}

// How many bytes the ranks send.
double expect_traffic(const RankRun& run, CollectiveStyle style = CollectiveStyle::kOwn) {
  const SimulatedRanks simulated(run, style);
  const StepTimeline timeline = simulated.simulate();
  double all = 0.0;
  for (std::size_t c = 0; c < timeline.classes.size(); ++c) {
    const std::size_t program = timeline.classes[c].program;
    const Traffic expected = step_traffic(simulated.programs()[program]);
    const RankPrograms ranks = simulated.ranks();
    EXPECT_EQ(with_pipeline_as_one(sent_by_axis(attribute(ranks, timeline, c), run.mesh), run.mesh),
              with_pipeline_as_one(sums(expected), run.mesh));
    EXPECT_EQ(sent_by_level(ranks.programs[program], ranks.cluster),
              sums(by_level(expected, run.mesh)));
    for (const auto& [where, bytes] : sums(expected)) {
      all += bytes;
    }
  }
  return all;
}

TEST(SimulatedTraffic, OfAnyLayoutIsThatOfItsProgram) {
  int num_quantized = 0;
  for (std::uint64_t seed = 0; seed < 48; ++seed) {
    Draw draw(seed);
    RankRun run = draw_run(draw);
    run.recompute = draw.one_in(2);
    run.overlap = draw.one_in(2);
    if (run.dtype == DType::kF32 && draw.one_in(2)) {
      run.wires = {.param = {.formats = {WireFormat::kBF16}, .block = 16},
                   .grad = {.formats = {WireFormat::kInt8}, .block = 16}};
      ++num_quantized;
    }
    SCOPED_TRACE(text(run));
    const double sent =
        expect_traffic(run, draw.one_in(2) ? CollectiveStyle::kOwn : CollectiveStyle::kNative);
    EXPECT_EQ(sent > 0.0, run.mesh.num_ranks() > 1);
  }
  EXPECT_GT(num_quantized, 5);
}

RankRun on_levels(std::int64_t ranks, const Placement& placement) {
  RankRun run = {.model = odd_llama(2), .mesh = virtual_mesh(ranks), .microbatches = 2};
  run.global_batch = 2 * ranks;
  run.placement = placement;
  run.overlap = true;
  return run;
}

TEST(SimulatedTraffic, OfPresetsIsThatOfTheirPrograms) {
  for (const std::int64_t ranks : {4, 8}) {
    for (const Placement& placement : preset_placements(virtual_mesh(ranks))) {
      RankRun run = on_levels(ranks, placement);
      EXPECT_GT(expect_traffic(run), 0.0);
      run.wires = {.param = {.formats = {WireFormat::kInt8}, .block = 16},
                   .secondary = {.formats = {WireFormat::kBF16}, .block = 16},
                   .grad = {.formats = {WireFormat::kInt4}, .block = 16},
                   .update = {.formats = {WireFormat::kInt8}, .block = 16}};
      EXPECT_GT(expect_traffic(run), 0.0);
    }
  }
}

TEST(SimulatedTraffic, OfPipelinesIsThatOfTheirPrograms) {
  for (const MeshDegrees& degrees : {MeshDegrees{.data = 2, .tensor = 1, .pipeline = 2},
                                     MeshDegrees{.data = 2, .tensor = 2, .pipeline = 2},
                                     MeshDegrees{.data = 1, .tensor = 2, .pipeline = 4},
                                     MeshDegrees{.data = 2, .tensor = 1, .pipeline = 4}}) {
    RankRun run = {.model = odd_llama(4),
                   .mesh = make_mesh(load_cluster(virtual_cluster(degrees.data * degrees.tensor *
                                                                  degrees.pipeline)),
                                     degrees),
                   .microbatches = 4,
                   .global_batch = 8,
                   .sequence_length = 8};
    run.model.kv_heads = run.model.heads;
    run.pipeline.layers.assign(static_cast<std::size_t>(degrees.pipeline), 4 / degrees.pipeline);
    run.sequence_parallel = degrees.tensor > 1;
    run.overlap = degrees.data > 1;
    run.placement = preset(degrees.data > 1 ? "fsdp" : "ddp", run.mesh).placement;
    for (const bool tied : {false, true}) {
      run.model.tied = tied;
      SCOPED_TRACE(format("data {} tensor {} pipeline {} tied {}",
                          degrees.data,
                          degrees.tensor,
                          degrees.pipeline,
                          tied));
      EXPECT_GT(expect_traffic(run), 0.0);
    }
  }
}

// All gradients of a model without a layout go around a ring: 2 (n - 1) / n of them, at a byte a
// tick.
TEST(SimulatedTraffic, OfARingIsItsClosedForm) {
  constexpr std::int64_t kRanks = 4;
  constexpr std::int64_t kDim = 1024;
  RankRun run = {
      .model = {.dim = kDim, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 256},
      .mesh = local_mesh({.data = kRanks}),
      .microbatches = 1,
      .global_batch = kRanks,
      .sequence_length = 8};
  run.placement = preset("ddp", run.mesh).placement;
  Cluster cluster = cluster_of(run.mesh);
  cluster.levels[0] = {.name = "local", .size = kRanks, .bandwidth = 1e12};
  std::int64_t elements = 0;
  const SimulatedRanks simulated(run.mesh, cluster, plain_programs(run), CollectiveStyle::kNative);
  for (const StateBinding& state : simulated.programs()[0].states) {
    elements += state.state.role == StateRole::kParameter ? state.tensor.type.num_elements() : 0;
  }
  constexpr std::int64_t kLayer = 4 * kDim * kDim + 3 * kDim * 128 + 2 * kDim;
  EXPECT_EQ(elements, 2 * kLayer + std::int64_t{2} * 256 * kDim + kDim);
  const double expected = 2.0 * (kRanks - 1) / kRanks * 4.0 * static_cast<double>(elements);
  double sent = 0.0;
  Ticks moving = 0;
  const TimedProgram& program = simulated.ranks().programs[0];
  for (const IssueStep& step : program.order.steps) {
    const Instruction& instruction = instruction_of(*program.program, step);
    const Traffic traffic = tessera::traffic(*instruction.op, operand_types(instruction));
    const bool is_of_state = std::ranges::any_of(traffic, [](const auto& along) {
      return along.second[static_cast<std::size_t>(TrafficClass::kState)] > 0;
    });
    for (const Piece& piece : program.pieces_of(step)) {
      sent += is_of_state ? piece.sent : 0.0;
      moving += is_of_state ? piece.moving : 0;
    }
  }
  EXPECT_EQ(sent, expected);
  EXPECT_EQ(static_cast<double>(moving), expected);
}

}  // namespace
}  // namespace tessera
