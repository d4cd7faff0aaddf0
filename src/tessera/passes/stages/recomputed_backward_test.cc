#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/schedules.h"
#include "tessera/passes/compile.h"
#include "tessera/passes/test_graphs.h"

namespace tessera {
namespace {

// Forwards of attention in all calls of a kind of action, by microbatch.
std::map<std::int32_t, int> forwards_of_attention(const Program& program, bool for_weights) {
  std::map<std::int32_t, int> counts;
  for (const Call& call : program.calls) {
    const Segment& segment = program[call.segment];
    const bool counts_here = (segment.code.action == Action::kWeightGradient) == for_weights;
    for (const Instruction& instruction : segment.instructions) {
      if (counts_here && info(*instruction.op).name == "attention") {
        ++counts[call.microbatch];
      }
    }
  }
  return counts;
}

// Where a backward is in two parts, its first one does the layer again, for both.
TEST(Pipeline, RecomputesLayersOnce) {
  constexpr std::int64_t kMicrobatches = 3;
  const std::vector<std::int64_t> layers = {2, 1};
  const ActionTable table =
      make_table({.schedule = PipelineSchedule::kZbH1, .ranks = 2, .microbatches = kMicrobatches});
  for (const bool recompute : {false, true}) {
    const std::vector<Program> programs = compile_pipeline(
        small_llama(3),
        {.update = {.num_microbatches = kMicrobatches},
         .recompute = recompute ? recompute_all() : RecomputeRules(),
         .pipeline = pipeline_options(
             table, layers, {}, {{.name = "pipeline", .size = 2}}, TransferLaunch::kByStream)});
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      const auto counts = forwards_of_attention(programs[rank], false);
      EXPECT_EQ(counts.size(), kMicrobatches);
      for (const auto& [microbatch, count] : counts) {
        EXPECT_EQ(count, (recompute ? 2 : 1) * layers[rank]) << "microbatch " << microbatch;
      }
      EXPECT_TRUE(forwards_of_attention(programs[rank], true).empty());
    }
  }
}

}  // namespace
}  // namespace tessera
