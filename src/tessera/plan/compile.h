#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/plan/pipeline_ranks.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/target.h"
#include "tessera/program/program.h"

namespace tessera {

// What a rank of a run executes, in one arena: the training step and, where the run validates,
// the loss of one batch of `microbatch` sequences per data rank, on the step's parameters. That one
// has inputs as the forward graph and the output "loss", the sum over the valid tokens of all
// ranks; between two steps it may run as often as is wanted, and leaves the states as they are. In
// a pipeline it has several microbatches, each of which is a batch and has a loss of its own.
struct Programs {
  Program step;
  std::optional<Program> validation = {};

  std::int64_t arena_bytes() const;
};

// The programs of all ranks of a run, which are those of their places along the pipeline.
using RunPrograms = ByPipelineRank<Programs>;

// Depends on the plan and the target alone: equal ones give equal programs, whatever machine
// compiles them. `dump` names a directory that gets the text of every level; empty: none.
// Errors: kInvalidConfig as workspace_query(); what passes refuse.
RunPrograms compile_run(const Plan& plan,
                        const Target& target,
                        const std::filesystem::path& dump = {});

// The same of a run without a pipeline, in which every rank executes the same.
Programs compile(const Plan& plan, const Target& target, const std::filesystem::path& dump = {});

// The graphs of a plan's step as recompute_layers takes them, of each pipeline rank. Of a plan that
// differs from theirs in passes.recompute or in what lies elsewhere alone, try_steps() makes the
// steps, without verifying them or the validation beside them; with_validation() does both.
std::vector<Graph> graphs_before_recompute(const Plan& plan, const Target& target);
std::vector<Program> try_steps(std::vector<Graph> graphs, const Plan& plan, const Target& target);
RunPrograms with_validation(std::vector<Program> steps, const Plan& plan, const Target& target);

// The programs by which each data rank says how well the model predicts `rows` sequences of
// `sequence_length` tokens of its own: evaluation_graph()'s inputs and outputs, for these alone.
// The ranks run it together. In a pipeline it has several microbatches of `rows` sequences, and all
// ranks have the outputs of each.
ByPipelineRank<Program> compile_run_evaluation(const Plan& plan,
                                               std::int64_t rows,
                                               std::int64_t sequence_length,
                                               const Target& target);

// The same of a run without a pipeline.
Program compile_evaluation(const Plan& plan,
                           std::int64_t rows,
                           std::int64_t sequence_length,
                           const Target& target);

// What a model that is fed piece by piece runs: `tokens` next tokens of each of `batch` sequences,
// whose keys and values are kept for `cache_length` tokens.
struct GenerationPlan {
  DType dtype = DType::kF32;
  std::int64_t batch = 1;
  std::int64_t tokens = 1;
  std::int64_t cache_length = 1;
  std::int64_t threads = 1;  // where the target is a CPU
};

Program compile_generation(const ModelDescription& model,
                           const GenerationPlan& plan,
                           const Target& target);

}  // namespace tessera
