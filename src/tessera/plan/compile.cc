#include "tessera/plan/compile.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/actions/forwards.h"
#include "tessera/base/error.h"
#include "tessera/passes/compile.h"
#include "tessera/passes/graph/undecayed_weights.h"
#include "tessera/plan/graphs.h"

namespace tessera {
namespace {

AttentionChoices attention_choices(const Plan& plan) {
  AttentionChoices choices = plan.layout.attention();
  choices.whole_rows = plan.passes.whole_rows;
  choices.any_order = plan.passes.any_order;
  return choices;
}

CompileOptions compile_options(const Plan& plan, const Target& target) {
  const OptimizerPlan& optimizer = plan.optimizer;
  const PassPlan& passes = plan.passes;
  return {.update = {.beta1 = optimizer.beta1,
                     .beta2 = optimizer.beta2,
                     .eps = optimizer.eps,
                     .weight_decay = optimizer.weight_decay,
                     .clip = optimizer.clip,
                     .moments = optimizer.moments,
                     .num_microbatches = plan.num_microbatches,
                     .state = state_axes(plan.layout),
                     .dims = plan.layout.dims()},
          .float8 = plan.float8,
          .attention = attention_choices(plan),
          .attention_kernels = passes.attention,
          .dropout = passes.dropout > 0.0 ? std::optional(passes.dropout) : std::nullopt,
          .logits_bytes = target.logits_bytes(),
          .round_logits = plan.logits == DType::kBF16,
          .round_gradients = optimizer.gradients == DType::kBF16,
          .recompute = passes.recompute,
          .fuse = passes.fuse,
          .group_gemms = passes.group_gemms,
          .gelu_products = target.has_gelu_products() && passes.gelu_products,
          .joins_accumulation = passes.joins_accumulation,
          .scatter_hops = passes.scatter_hops,
          .gathers_ahead = passes.gathers_ahead,
          .tensor_beside = passes.tensor_beside,
          .rings_beside = !target.is_device(),
          .overlap = passes.overlap,
          .overlap_layers = passes.overlap_layers,
          .offload = {.optimizer = passes.optimizer,
                      .parameters = passes.parameters,
                      .activations = passes.activations,
                      .all_activations = passes.all_activations},
          .moved_states = passes.moved_states,
          .workspace_bytes = workspace_query(target, plan.threads)};
}

// Of a plan with a pipeline, with this table of its stages.
PipelineOptions pipeline_options(const Plan& plan, const Target& target, const ActionTable& table) {
  return pipeline_options(
      table,
      plan.pipeline->layers,
      table.slices > 1 ? plan.pipeline->slice_lengths : std::vector<std::int64_t>(),
      pipeline_axes(plan.layout.mesh),
      target.is_device() ? TransferLaunch::kInOneQueue : TransferLaunch::kByStream);
}

CompileOptions step_options(const Plan& plan,
                            const Target& target,
                            const Graph& graph,
                            const std::filesystem::path& dump) {
  CompileOptions options = compile_options(plan, target);
  if (plan.pipeline) {
    options.pipeline = pipeline_options(plan, target, plan.pipeline->table);
  }
  options.dump = dump;
  if (!plan.optimizer.decays_all) {
    options.update.undecayed = undecayed_weights(graph);
  }
  return options;
}

// The microbatches of forwards alone that are on their way at once, for each rank of a pipeline: it
// fills and drains in less than a fifth of the time.
constexpr std::int64_t kForwardsPerRank = 4;

// Of forwards alone, in a plan with a pipeline, from what a step's are or a single rank's.
CompileOptions forward_options(const Plan& plan, const Target& target, CompileOptions options) {
  const ActionTable& step = plan.pipeline->table;
  const ActionTable table = forwards(step.rank_of_stage, kForwardsPerRank * step.ranks);
  options.pipeline = pipeline_options(plan, target, table);
  options.update.num_microbatches = table.microbatches;
  return options;
}

// Beside the steps that are there, compiled with these options.
void add_validation(const Plan& plan,
                    const Target& target,
                    const CompileOptions& of_steps,
                    std::vector<Programs>& programs) {
  CompileOptions options = plan.pipeline ? forward_options(plan, target, of_steps) : of_steps;
  for (const Programs& own : programs) {
    options.beside.push_back(&own.step);
  }
  if (!options.dump.empty()) {
    options.dump /= "validation";
  }
  std::vector<Program> validation;
  if (plan.pipeline) {
    validation = compile_pipeline_forward(step_graph(plan), options);
  } else {
    validation.push_back(compile_forward(step_graph(plan), options));
  }
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    programs[rank].validation = std::move(validation[rank]);
    programs[rank].validation->name = "validation";
  }
}

// The programs of each pipeline rank, of which these are the steps.
std::vector<Programs> with_validation(std::vector<Program> steps,
                                      const Plan& plan,
                                      const Target& target,
                                      const CompileOptions& options) {
  std::vector<Programs> programs;
  for (Program& step : steps) {
    programs.push_back({.step = std::move(step)});
  }
  if (plan.validates) {
    add_validation(plan, target, options, programs);
  }
  return programs;
}

std::vector<Programs> compile_steps(const Plan& plan,
                                    const Target& target,
                                    const std::filesystem::path& dump) {
  Graph graph = step_graph(plan);
  const CompileOptions options = step_options(plan, target, graph, dump);
  std::vector<Program> steps;
  if (plan.pipeline) {
    steps = compile_pipeline(std::move(graph), options);
  } else {
    steps.push_back(compile_training(std::move(graph), options));
  }
  return with_validation(std::move(steps), plan, target, options);
}

// Of an evaluation, in which each data rank has sequences of its own.
CompileOptions evaluation_options(const Plan& plan, const Target& target) {
  CompileOptions options = compile_options(plan, target);
  options.update.dims = plan.layout.evaluation_dims();
  options.sum_outputs = false;
  return options;
}

}  // namespace

std::int64_t Programs::arena_bytes() const {
  return std::max(step.arena_bytes, validation ? validation->arena_bytes : 0);
}

Programs compile(const Plan& plan, const Target& target, const std::filesystem::path& dump) {
  TESSERA_CHECK(!plan.pipeline, "one program is asked for, of a run with a pipeline");
  return std::move(compile_steps(plan, target, dump).front());
}

std::vector<Graph> graphs_before_recompute(const Plan& plan, const Target& target) {
  Graph graph = step_graph(plan);
  const CompileOptions options = step_options(plan, target, graph, {});
  return graphs_before_recompute(std::move(graph), options);
}

std::vector<Program> try_steps(std::vector<Graph> graphs, const Plan& plan, const Target& target) {
  return try_from_recompute(std::move(graphs), step_options(plan, target, step_graph(plan), {}));
}

RunPrograms with_validation(std::vector<Program> steps, const Plan& plan, const Target& target) {
  for (const Program& step : steps) {
    verify(step);
  }
  const CompileOptions options = step_options(plan, target, step_graph(plan), {});
  return {plan.layout.mesh, with_validation(std::move(steps), plan, target, options)};
}

RunPrograms compile_run(const Plan& plan, const Target& target, const std::filesystem::path& dump) {
  return {plan.layout.mesh, compile_steps(plan, target, dump)};
}

Program compile_evaluation(const Plan& plan,
                           std::int64_t rows,
                           std::int64_t sequence_length,
                           const Target& target) {
  TESSERA_CHECK(!plan.pipeline, "one program is asked for, of a run with a pipeline");
  return compile_forward(evaluation_graph(plan.model, rows, sequence_length, plan.dtype),
                         evaluation_options(plan, target));
}

ByPipelineRank<Program> compile_run_evaluation(const Plan& plan,
                                               std::int64_t rows,
                                               std::int64_t sequence_length,
                                               const Target& target) {
  if (!plan.pipeline) {
    return {plan.layout.mesh, {compile_evaluation(plan, rows, sequence_length, target)}};
  }
  return {
      plan.layout.mesh,
      compile_pipeline_forward(evaluation_graph(plan.model, rows, sequence_length, plan.dtype),
                               forward_options(plan, target, evaluation_options(plan, target)))};
}

Program compile_generation(const ModelDescription& model,
                           const GenerationPlan& plan,
                           const Target& target) {
  return compile_forward(
      generation_graph(model, plan.tokens, plan.dtype, plan.batch, plan.cache_length),
      {.cache_length = plan.cache_length,
       .workspace_bytes = workspace_query(target, plan.threads)});
}

}  // namespace tessera
