#include "tessera/resolve/traits.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/config/config.h"
#include "tessera/ops/op.h"
#include "tessera/program/operand_types.h"
#include "tessera/program/program.h"
#include "tessera/resolve/simulated_run.h"

namespace tessera {
namespace {

using testing::HasSubstr;

RunConfig with(const std::vector<std::string>& names, RunConfig config = {}) {
  return with_traits(std::move(config), find_traits(names));
}

TEST(Traits, SetKeysOfTheRun) {
  const RunConfig eager = with({"eager", "ddp=after", "recompute=full"});
  EXPECT_FALSE(eager.passes.fuse);
  EXPECT_FALSE(eager.passes.group_gemms);
  EXPECT_FALSE(eager.comm.overlap);
  EXPECT_EQ(eager.memory.recompute, Recompute::kFull);
  EXPECT_EQ(with({"no_reshard"}).state.secondary, "1");
  EXPECT_EQ(with({}), RunConfig());
}

TEST(Traits, ChangeThePlan) {
  Plan plan;
  const std::vector<std::string> names = {
      "gradients=apart", "scatter_gather", "gather_ahead", "tensor_beside"};
  changes_of(find_traits(names)).plan(plan);
  EXPECT_FALSE(plan.passes.joins_accumulation);
  EXPECT_TRUE(plan.passes.scatter_hops);
  EXPECT_TRUE(plan.passes.gathers_ahead);
  EXPECT_TRUE(plan.passes.tensor_beside);
}

TEST(Traits, AreNamedOnce) {
  const auto error = [](const std::vector<std::string>& names) {
    return error_of(ErrorCode::kInvalidConfig, [&] { find_traits(names); });
  };
  EXPECT_THAT(error({"eagre"}), HasSubstr("did you mean \"eager\""));
  EXPECT_THAT(error({"eager", "fused_kernels"}), HasSubstr("found it beside eager"));
  EXPECT_THAT(error({"no_reshard", "no_reshard"}), HasSubstr("--as=no_reshard"));
}

// Two nodes of four devices, with a network that is slow enough to set the pace.
constexpr std::string_view kCluster = R"(
name = "two-nodes"
[device]
name = "H100 SXM"
memory = "80 GB"
memory_bandwidth = "3.35 TB/s"
peak = { f32 = "67 TFLOP/s", bf16 = "989 TFLOP/s", f8 = "1979 TFLOP/s" }
units = 132
tiles = [[128, 128]]
[[levels]]
name = "node"
size = 4
bandwidth = "450 GB/s"
latency = "0 s"
[[levels]]
name = "cluster"
size = 2
bandwidth = "1 GB/s"
latency = "0 s"
)";

// Seconds for which the links of a rank are busy.
double moving(const TimedProgram& program) {
  double seconds = 0.0;
  for (const Piece& piece : program.pieces) {
    seconds += to_seconds(piece.moving);
  }
  return seconds;
}

// Of rings over all eight ranks, of which each of a node's four cards carries a quarter: 7/8 of the
// bytes once, or twice where sums are spread again.
double ring_seconds(const Program& program) {
  constexpr double kBandwidth = 1e9;
  double bytes = 0.0;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      for (const CollectiveUse& use : collectives(*instruction.op, operand_types(instruction))) {
        const double rounds = use.kind == CollectiveKind::kAllReduce ? 2.0 : 1.0;
        bytes += rounds * static_cast<double>(use.bytes * use.count);
      }
    }
  }
  return bytes * (7.0 / 8.0) / 4.0 / kBandwidth;
}

SimulatedRun small_run(const std::string& file, const std::vector<std::string>& names) {
  const std::vector<std::string> overrides = {"--model.flavor=debug",
                                              "--train.dtype=bf16",
                                              "--train.global_batch=8",
                                              "--parallel.ranks=8",
                                              "--cluster.file=" + file};
  const std::vector<const Trait*> traits = find_traits(names);
  return {load_run_config({}, overrides, ConfigUse::kPlan), load_cluster(file), changes_of(traits)};
}

TEST(FlatCollectives, AreRingsOverAllRanks) {
  const TestDirectory directory;
  const std::string file = (directory.path() / "cluster.toml").string();
  write_test_file(file, kCluster);
  const SimulatedRun run = small_run(file, {"flat_collectives"});
  const TimedProgram& program = run.ranks().programs[0];
  EXPECT_NEAR(moving(program) / ring_seconds(*program.program), 1.0, 1e-4);
  EXPECT_GT(to_seconds(run.simulate().step), 0.5 * moving(program));
  // In buckets as many bytes move, and fewer times something waits for a latency.
  const SimulatedRun joined = small_run(file, {"buckets"});
  EXPECT_NEAR(moving(joined.ranks().programs[0]) / moving(program), 1.0, 1e-4);
}

TEST(FlatCollectives, InBucketsHaveOneLatencyALayer) {
  const TestDirectory directory;
  const std::string file = (directory.path() / "cluster.toml").string();
  std::string text(kCluster);
  for (std::size_t at = text.find("0 s"); at != std::string::npos; at = text.find("0 s", at)) {
    text.replace(at, 3, "1 s");
  }
  write_test_file(file, text);
  const auto latency = [&](const std::string& trait) {
    double seconds = 0.0;
    const SimulatedRun run = small_run(file, {trait});
    for (const Piece& piece : run.ranks().programs[0].pieces) {
      seconds += piece.is_leg() ? to_seconds(piece.ticks) : 0.0;
    }
    return seconds;
  };
  // Nine weights of a layer of Llama.
  EXPECT_LT(latency("buckets"), latency("flat_collectives") / 4.0);
}

}  // namespace
}  // namespace tessera
