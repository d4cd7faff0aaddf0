#include "tessera/train/step_program.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/units.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/take/take.h"
#include "tessera/ops/view/view_ops.h"
#include "tessera/passes/add_adapters.h"
#include "tessera/passes/pipeline.h"
#include "tessera/passes/undecayed_weights.h"
#include "tessera/program/step_names.h"
#include "tessera/train/resolve.h"
#include "tessera/train/run_layout.h"

namespace tessera {
namespace {

TensorType ids(std::int64_t batch, std::int64_t sequence_length) {
  return {.dtype = DType::kI32,
          .dims = {{.name = "batch", .bound = batch}, {.name = "seq", .bound = sequence_length}}};
}

ModelInputs model_inputs(GraphBuilder& builder, const TensorType& type) {
  return {.tokens = builder.input(step_names::kTokens, type),
          .positions = builder.input(step_names::kPositions, type),
          .documents = builder.input(step_names::kDocuments, type)};
}

// The graph that `builder` holds, with the model's adapters.
Graph take_adapted(GraphBuilder& builder, const ModelDescription& model) {
  Graph graph = builder.take();
  return model.adapters ? add_adapters(graph, *model.adapters) : graph;
}

std::int64_t num_microbatches(const RunConfig& config) {
  return config.train.global_batch / (config.train.microbatch * config.parallel.data.value_or(1));
}

// The inputs of all microbatches lie in the arena, and there is a call for each: refuses what could
// not even be written down.
void require_inputs_fit(const RunConfig& config, const Graph& graph) {
  double bytes = 0;
  for (const ValueId input : graph.sources(ValueKind::kInput)) {
    bytes += static_cast<double>(graph[input].type.num_bytes());
  }
  bytes *= static_cast<double>(num_microbatches(config)) /
           static_cast<double>(config.parallel.data.value_or(1));
  const std::int64_t limit = memory_limit(config);
  // Where one sequence is too much already, no batch is small enough.
  const double of_one = bytes / static_cast<double>(config.train.global_batch);
  const std::string_view key =
      of_one > static_cast<double>(limit) ? "data.sequence_length" : "train.global_batch";
  TESSERA_REQUIRE(
      bytes <= static_cast<double>(limit),
      ErrorCode::kOutOfMemory,
      "{}: the token ids of a step need {}, and the run may use {}: choose a smaller {}",
      placed(config, key),
      format_bytes(static_cast<std::int64_t>(std::min(bytes, 0x1p62))),
      format_bytes(limit),
      key);
}

std::optional<Float8Options> float8_options(const Float8Section& float8) {
  if (float8.recipe == Float8Recipe::kOff) {
    return std::nullopt;
  }
  const bool rowwise = float8.recipe == Float8Recipe::kRowwise;
  return Float8Options{
      .rowwise = rowwise,
      .gradients = float8.gradients.value_or(rowwise ? DType::kF8E4M3 : DType::kF8E5M2),
      .skip_first = float8.skip_first,
      .skip_last = float8.skip_last,
      .head = float8.head,
      .fast_accumulation = float8.fast_accumulation,
      .keep_weight_codes = float8.keep_weight_codes};
}

CompileOptions compile_options(const RunConfig& config, const WorkspaceQuery& workspace_bytes) {
  const RunLayout layout = run_layout(config);
  return {.update = {.beta1 = config.optimizer.betas[0],
                     .beta2 = config.optimizer.betas[1],
                     .eps = config.optimizer.eps,
                     .weight_decay = config.optimizer.weight_decay,
                     .clip = config.optimizer.clip,
                     .moments = config.optimizer.moments,
                     .num_microbatches = num_microbatches(config),
                     .state = state_axes(layout),
                     .dims = layout.dims()},
          .float8 = float8_options(config.float8),
          .attention = {.whole_rows = !config.data.document_mask,
                        .any_order = !config.run.deterministic},
          .logits_bytes = config.run.device == "cuda" ? kDeviceLogitsBytes : 0,
          .round_logits = config.train.logits == DType::kBF16,
          .round_gradients = config.optimizer.gradients == DType::kBF16,
          .recompute = config.memory.recompute == Recompute::kFull,
          .fuse = config.passes.fuse,
          .group_gemms = config.passes.group_gemms,
          .gelu_products = config.run.device == "cuda" && config.passes.gelu_products,
          .overlap = config.comm.overlap,
          .overlap_layers = config.comm.overlap_layers,
          .dump = config.passes.dump,
          .workspace_bytes = workspace_bytes};
}

}  // namespace

Graph training_graph(const ModelDescription& model,
                     std::int64_t batch,
                     std::int64_t sequence_length,
                     DType dtype) {
  GraphBuilder builder("train", dtype);
  const TensorType type = ids(batch, sequence_length);
  const ModelInputs inputs = model_inputs(builder, type);
  const Value labels = builder.input(step_names::kLabels, type);
  const Value inverse_labels = builder.scalar(step_names::kInverseLabels);
  const ModelOutputs outputs = model.model(builder, inputs);
  builder.output(step_names::kLoss,
                 cross_entropy(outputs.hidden, outputs.head, labels, inverse_labels, outputs.vocab),
                 OutputKind::kLoss);
  return take_adapted(builder, model);
}

Graph generation_graph(const ModelDescription& model,
                       std::int64_t sequence_length,
                       DType dtype,
                       std::int64_t batch) {
  GraphBuilder builder("generate", dtype);
  const ModelInputs inputs = model_inputs(builder, ids(batch, sequence_length));
  const Value last =
      builder.input("last", {.dtype = DType::kI32, .dims = {{.name = "batch", .bound = batch}}});
  const ModelOutputs outputs = model.model(builder, inputs);
  // What is padding cannot be sampled.
  const Value head =
      outputs.vocab > 0
          ? builder.emit(make_op(SliceAttrs{.dim = 0, .size = outputs.vocab, .name = "vocab"}),
                         {outputs.head})[0]
          : outputs.head;
  builder.output("logits", matmul(take(outputs.hidden, last), head, {.transpose_b = true}));
  return take_adapted(builder, model);
}

Graph evaluation_graph(const ModelDescription& model,
                       std::int64_t batch,
                       std::int64_t sequence_length,
                       DType dtype) {
  GraphBuilder builder("evaluate", dtype);
  const TensorType type = ids(batch, sequence_length);
  const ModelInputs inputs = model_inputs(builder, type);
  const Value labels = builder.input(step_names::kLabels, type);
  const Value inverse_labels = builder.scalar(step_names::kInverseLabels);
  const ModelOutputs outputs = model.model(builder, inputs);
  for (std::int64_t row = 0; row < batch; ++row) {
    const OpRef slice = make_op(SliceAttrs{.dim = 0, .begin = row, .size = 1, .name = "batch"});
    const Value hidden = builder.emit(slice, {outputs.hidden})[0];
    builder.output(
        format("loss.{}", row),
        cross_entropy(
            hidden, outputs.head, builder.emit(slice, {labels})[0], inverse_labels, outputs.vocab));
  }
  return take_adapted(builder, model);
}

Graph step_graph(const RunConfig& config, const ModelDescription& model) {
  return training_graph(model,
                        config.train.microbatch * config.parallel.data.value_or(1),
                        config.data.sequence_length,
                        config.train.dtype);
}

std::int64_t RunPrograms::arena_bytes() const {
  return std::max(step.arena_bytes, validation ? validation->arena_bytes : 0);
}

Program compile_step(const RunConfig& config,
                     const ModelDescription& model,
                     const WorkspaceQuery& workspace_bytes) {
  Graph graph = step_graph(config, model);
  require_inputs_fit(config, graph);
  CompileOptions options = compile_options(config, workspace_bytes);
  if (config.optimizer.decay == DecayedWeights::kMatrices) {
    options.update.undecayed = undecayed_weights(graph);
  }
  return compile_training(std::move(graph), options);
}

Program compile_evaluation(const RunConfig& config,
                           const ModelDescription& model,
                           std::int64_t rows,
                           std::int64_t sequence_length,
                           const WorkspaceQuery& workspace_bytes) {
  CompileOptions options = compile_options(config, workspace_bytes);
  options.update.dims.erase("batch");
  options.sum_outputs = false;
  options.dump.clear();
  return compile_forward(evaluation_graph(model, rows, sequence_length, config.train.dtype),
                         options);
}

RunPrograms compile_run(const RunConfig& config,
                        const ModelDescription& model,
                        const WorkspaceQuery& workspace_bytes) {
  RunPrograms programs = {.step = compile_step(config, model, workspace_bytes)};
  if (config.validation.every > 0) {
    CompileOptions options = compile_options(config, workspace_bytes);
    options.beside = &programs.step;
    if (!options.dump.empty()) {
      options.dump /= "validation";
    }
    programs.validation = compile_forward(step_graph(config, model), options);
    programs.validation->name = "validation";
  }
  return programs;
}

}  // namespace tessera
