// What programs of a pipeline wait for, by the clock of their schedule: no more than it says.

#include "tests/distributed/program_times.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/schedules.h"
#include "tessera/actions/timeline.h"
#include "tessera/ops/op.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/operand_types.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/schedule_name.h"

namespace tessera {
namespace {

// Ticks: FLOP.
double flop_of(const Instruction& instruction) {
  return instruction.results.empty() ? 0.0 : cost(*instruction.op, operand_types(instruction)).flop;
}

double& part_of(ActionCosts& costs, Action action) {
  return action == Action::kForward    ? costs.forward
         : action == Action::kBackward ? costs.input_gradient
                                       : costs.weight_gradient;
}

struct StepCosts {
  std::vector<ActionCosts> stages;
  double update = 0.0;  // of the rank that takes longest
};

// Of the last microbatch, by which all first ones are over.
StepCosts costs_of(const ActionTable& table, const std::vector<Program>& programs) {
  StepCosts costs = {.stages =
                         std::vector(static_cast<std::size_t>(table.stages), ActionCosts{0, 0, 0})};
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    const Program& program = programs[rank];
    const std::vector<std::int64_t> own = stages_of_rank(table, static_cast<std::int64_t>(rank));
    double update = 0.0;
    for (const IssueStep& step : issue_order(program).steps) {
      const Call& call = call_of(program, step);
      const Code& code = program[call.segment].code;
      const double flop = step.works ? flop_of(instruction_of(program, step)) : 0.0;
      if (code.action == Action::kUpdate) {
        update += flop;
      } else if (call.microbatch == table.microbatches - 1) {
        const auto stage = own[static_cast<std::size_t>(code.chunk)];
        part_of(costs.stages[static_cast<std::size_t>(stage)], code.action) += flop;
      }
    }
    costs.update = std::max(costs.update, update);
  }
  return costs;
}

RankRun run_of(PipelineSchedule schedule, std::int64_t ranks, std::int64_t microbatches) {
  constexpr std::int64_t kLayers = 8;
  const std::int64_t chunks = default_chunks(schedule);
  // The head makes the last stage longer, as the first update of a gradient does the first.
  RankRun run = {
      .model = {.dim = 64, .layers = kLayers, .heads = 4, .kv_heads = 4, .ffn = 192, .vocab = 96},
      .mesh = local_mesh({.pipeline = ranks}),
      .microbatches = microbatches,
      .global_batch = microbatches,
      .sequence_length = 64};
  run.pipeline = {
      .layers = std::vector(static_cast<std::size_t>(ranks * chunks), kLayers / (ranks * chunks)),
      .schedule = schedule};
  return run;
}

class ProgramTimesTest : public testing::TestWithParam<PipelineSchedule> {};

// Transfers hold up neither each other nor work. A weight gradient that follows its input gradient
// at once is after the send, so that a step may be shorter than the timeline.
TEST_P(ProgramTimesTest, AStepTakesWhatItsTimelineSays) {
  for (const std::int64_t ranks : {2, 4}) {
    for (const std::int64_t microbatches : {8, 16}) {
      const RankRun run = run_of(GetParam(), ranks, microbatches);
      const ActionTable table = action_table(run);
      const std::vector<Program> programs =
          compile_pipeline(whole_graph(run), rank_options(run, {}));
      const StepCosts costs = costs_of(table, programs);
      for (const double share : {0.0, 0.1}) {
        const double hop = share * costs.stages[0].forward;
        const double expected = timeline(table, costs.stages, hop).makespan + costs.update;
        const double found = step_seconds(programs, flop_of, hop);
        EXPECT_LE(found, 1.001 * expected)
            << ranks << " ranks, " << microbatches << " microbatches, hop " << share;
        EXPECT_GE(found, 0.95 * expected)
            << ranks << " ranks, " << microbatches << " microbatches, hop " << share;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules,
                         ProgramTimesTest,
                         testing::ValuesIn(kPipelineSchedules),
                         schedule_name);

}  // namespace
}  // namespace tessera
