#include "tessera/train/step_program.h"

#include <algorithm>
#include <array>
#include <functional>
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
  return config.memory.limit_bytes > 0 ? config.memory.limit_bytes : free_memory_bytes();
}

std::int64_t num_microbatches(const RunConfig& config) {
  return config.train.global_batch / config.train.microbatch;
}

// The inputs of all microbatches lie in the arena, and there is a call for each: refuses what could
// not even be written down.
void require_inputs_fit(const RunConfig& config, const Graph& graph) {
  double bytes = 0;
  for (const ValueId input : graph.sources(ValueKind::kInput)) {
    bytes += static_cast<double>(graph[input].type.num_bytes());
  }
  bytes *= static_cast<double>(num_microbatches(config));
  const std::int64_t limit = memory_limit(config);
  TESSERA_REQUIRE(bytes <= static_cast<double>(limit),
                  ErrorCode::kOutOfMemory,
                  "{}: the token ids of {} microbatches need {:.3g} bytes, and the run may use {}: "
                  "choose a smaller train.global_batch",
                  placed(config, "train.global_batch"),
                  num_microbatches(config),
                  bytes,
                  format_bytes(limit));
}

// A change of the plan that may make a run fit.
struct Remedy {
  std::string text;
  RunConfig config;
};

// From the cheapest; each keeps the run's results but for the order of sums.
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

// The plan that needs least, at ever shorter sequences: the longest that fits, or the shortest.
Remedy shorter_sequences(const RunConfig& config,
                         const std::function<std::int64_t(const RunConfig&)>& arena_bytes) {
  constexpr std::int64_t kShortest = 16;
  Remedy remedy{.text = {}, .config = config};
  remedy.config.memory.recompute = Recompute::kFull;
  remedy.config.train.microbatch = 1;
  std::int64_t& length = remedy.config.data.sequence_length;
  do {
    length = std::max(length / 2, kShortest);
  } while (length > kShortest && arena_bytes(remedy.config) > memory_limit(config));
  remedy.text =
      format("data.sequence_length = {} with memory.recompute = \"full\" and train.microbatch = 1",
             length);
  return remedy;
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
  CompileOptions options{.update = {.beta1 = config.optimizer.betas[0],
                                    .beta2 = config.optimizer.betas[1],
                                    .eps = config.optimizer.eps,
                                    .weight_decay = config.optimizer.weight_decay,
                                    .clip = config.optimizer.clip,
                                    .num_microbatches = num_microbatches(config)},
                         .recompute = config.memory.recompute == Recompute::kFull,
                         .fuse = config.passes.fuse,
                         .group_gemms = config.passes.group_gemms,
                         .dump = config.passes.dump,
                         .workspace_bytes = workspace_bytes};
  Graph graph = training_graph(
      model, config.train.microbatch, config.data.sequence_length, config.train.dtype);
  require_inputs_fit(config, graph);
  return compile_training(std::move(graph), options);
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
  const auto arena_bytes = [&](RunConfig changed) {
    changed.passes.dump.clear();
    return compile_step(changed, model, workspace_bytes).arena_bytes;
  };
  std::string advice;
  bool some_fit = false;
  const auto advise = [&](const Remedy& remedy) {
    const std::int64_t bytes = arena_bytes(remedy.config);
    some_fit = some_fit || bytes <= limit;
    advice += format("  {} needs {}{}\n",
                     remedy.text,
                     format_bytes(bytes),
                     bytes <= limit ? ", which fits" : "");
  };
  std::ranges::for_each(remedies(config), advise);
  if (!some_fit) {
    advise(shorter_sequences(config, arena_bytes));
  }
  if (!some_fit) {
    advice += "  nothing of this fits: choose a smaller model\n";
  }
  fail(ErrorCode::kOutOfMemory,
       "the run needs {} and may use {}{}\n{}{}",
       format_bytes(program.arena_bytes),
       format_bytes(limit),
       config.memory.limit_bytes > 0 ? " (memory.limit_bytes)" : " (free on this machine)",
       memory_table(program),
       advice);
}

}  // namespace tessera
