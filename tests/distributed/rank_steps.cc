#include "tests/distributed/rank_steps.h"

#include <utility>

#include "tessera/passes/compile.h"
#include "tessera/plan/run_layout.h"
#include "tessera/plan/target.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"

namespace tessera {

std::vector<Program> rank_programs(const RankRun& run) {
  const CompileOptions options = rank_options(run, workspace_query(cpu_target(), 1));
  if (options.pipeline) {
    return compile_pipeline(whole_graph(run), options);
  }
  std::vector<Program> programs;
  programs.push_back(compile_training(whole_graph(run), options));
  return programs;
}

void fill(Executor& executor, const RankRun& run, const Program& program, std::int64_t rank) {
  initialize_state(executor,
                   parameter_inits(whole_graph(run)),
                   run.seed,
                   state_part(run.mesh, rank, dim_axes(run.mesh, run.sequence_parallel)));
  const std::int64_t length = run.sequence_length;
  const std::int64_t document = run.document_length > 0 ? run.document_length : length;
  for (const Binding& input : program.inputs) {
    const std::int64_t count = input.tensor.type.num_elements();
    for (std::int64_t m = 0; m < program.num_microbatches; ++m) {
      auto* values = reinterpret_cast<std::int32_t*>(executor.bytes(input, m).data());
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t t = i % length;
        values[i] = input.name == "documents"   ? static_cast<std::int32_t>(t / document)
                    : input.name == "positions" ? static_cast<std::int32_t>(t % document)
                                                : token(m, i / length, t, description(run).vocab);
      }
    }
  }
}

RankSteps::RankSteps(World& world, const RankRun& run, const Program& program, const Wrap& wrap)
    : rank_(world, run.mesh, 1),
      wrapped_(wrap ? wrap(*rank_) : nullptr),
      executor_(program, wrapped_ ? *wrapped_ : *rank_),
      labels_(run.global_batch * run.sequence_length) {
  fill(executor_, run, program, world.rank());
}

void RankSteps::step() {
  TrainingStep(executor_).run(
      {.num_labels = labels_, .learning_rate = 3e-4, .update_number = ++updates_});
}

}  // namespace tessera
