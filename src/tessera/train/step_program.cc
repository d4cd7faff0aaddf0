#include "tessera/train/step_program.h"

#include <array>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/base/units.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/take/take.h"
#include "tessera/passes/pipeline.h"

namespace tessera {
namespace {

TensorType ids(std::int64_t batch, std::int64_t sequence_length) {
  return {.dtype = DType::kI32,
          .dims = {{.name = "batch", .bound = batch}, {.name = "seq", .bound = sequence_length}}};
}

ModelInputs model_inputs(GraphBuilder& builder, const TensorType& type) {
  return {.tokens = builder.input("tokens", type),
          .positions = builder.input("positions", type),
          .documents = builder.input("documents", type)};
}

std::int64_t memory_limit(const RunConfig& config) {
  return config.memory.limit_bytes > 0 ? config.memory.limit_bytes : usable_memory_bytes();
}

// A change of the plan that may make a run fit.
struct Remedy {
  std::string text;
  RunConfig config;
};

std::vector<Remedy> remedies(const RunConfig& config) {
  std::vector<Remedy> list;
  RunConfig changed = config;
  if (config.memory.recompute == Recompute::kNone) {
    changed.memory.recompute = Recompute::kFull;
    list.push_back({.text = "memory.recompute = \"full\"", .config = changed});
  }
  if (config.train.microbatch > 1) {
    RunConfig smaller = config;
    smaller.train.microbatch = 1;
    list.push_back({.text = "train.microbatch = 1", .config = smaller});
    if (config.memory.recompute == Recompute::kNone) {
      changed.train.microbatch = 1;
      list.push_back(
          {.text = "memory.recompute = \"full\" and train.microbatch = 1", .config = changed});
    }
  }
  return list;
}

}  // namespace

Graph training_graph(const ModelDescription& model,
                     std::int64_t batch,
                     std::int64_t sequence_length,
                     DType dtype) {
  GraphBuilder builder("train", dtype);
  const TensorType type = ids(batch, sequence_length);
  const ModelInputs inputs = model_inputs(builder, type);
  const Value labels = builder.input("labels", type);
  const Value seed = builder.scalar("seed");
  const ModelOutputs outputs = model.model(builder, inputs);
  builder.output("loss", cross_entropy(outputs.hidden, outputs.head, labels, seed));
  return builder.take();
}

Graph generation_graph(const ModelDescription& model, std::int64_t sequence_length, DType dtype) {
  GraphBuilder builder("generate", dtype);
  const ModelInputs inputs = model_inputs(builder, ids(1, sequence_length));
  const Value last =
      builder.input("last", {.dtype = DType::kI32, .dims = {{.name = "batch", .bound = 1}}});
  const ModelOutputs outputs = model.model(builder, inputs);
  builder.output("logits", matmul(take(outputs.hidden, last), outputs.head, {.transpose_b = true}));
  return builder.take();
}

Program compile_step(const RunConfig& config,
                     const ModelDescription& model,
                     const WorkspaceQuery& workspace_bytes) {
  CompileOptions options{
      .update = {.beta1 = config.optimizer.betas[0],
                 .beta2 = config.optimizer.betas[1],
                 .eps = config.optimizer.eps,
                 .weight_decay = config.optimizer.weight_decay,
                 .clip = config.optimizer.clip,
                 .num_microbatches = config.train.global_batch / config.train.microbatch},
      .recompute = config.memory.recompute == Recompute::kFull,
      .fuse = config.passes.fuse,
      .group_gemms = config.passes.group_gemms,
      .dump = config.passes.dump,
      .workspace_bytes = workspace_bytes};
  return compile_training(
      training_graph(
          model, config.train.microbatch, config.data.sequence_length, config.train.dtype),
      options);
}

std::int64_t num_parameters(const Program& program) {
  std::int64_t count = 0;
  for (const Binding& state : program.states) {
    if (program[state.tensor.buffer].category == Category::kParameter) {
      count += state.tensor.type.num_elements();
    }
  }
  return count;
}

std::string memory_table(const Program& program) {
  std::string text;
  for (const MemoryRow& row : memory_by_category(program)) {
    text += format("  {:<12} {:>12}\n", name(row.category), format_bytes(row.peak_bytes));
  }
  return text +
         format("  {:<12} {:>12}  ({} bytes; parts that are never alive together share memory)\n",
                "arena",
                format_bytes(program.arena_bytes),
                format_grouped(program.arena_bytes));
}

void require_fits(const Program& program,
                  const RunConfig& config,
                  const ModelDescription& model,
                  const WorkspaceQuery& workspace_bytes) {
  const std::int64_t limit = memory_limit(config);
  if (program.arena_bytes <= limit) {
    return;
  }
  std::string advice;
  for (Remedy& remedy : remedies(config)) {
    remedy.config.passes.dump.clear();
    const std::int64_t bytes = compile_step(remedy.config, model, workspace_bytes).arena_bytes;
    advice += format("  {} needs {}{}\n",
                     remedy.text,
                     format_bytes(bytes),
                     bytes <= limit ? ", which fits" : "");
  }
  fail(ErrorCode::kOutOfMemory,
       "the run needs {} and may use {}{}\n{}{}",
       format_bytes(program.arena_bytes),
       format_bytes(limit),
       config.memory.limit_bytes > 0 ? " (memory.limit_bytes)" : " (this machine)",
       memory_table(program),
       advice.empty() ? "  choose a smaller model or data.sequence_length\n" : advice);
}

}  // namespace tessera
