#include "tessera/passes/pipeline.h"

#include <utility>

#include "tessera/autodiff/differentiate.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/passes/overlap.h"

namespace tessera {
namespace {

// Verifies each level and writes it where it was asked for.
class Stages {
 public:
  explicit Stages(std::filesystem::path directory) : directory_(std::move(directory)) {
    if (!directory_.empty()) {
      std::filesystem::create_directories(directory_);
    }
  }

  template <class Level>
  Level operator()(const char* stage, Level level) {
    verify(level);
    if (!directory_.empty()) {
      write_file_atomic(directory_ / format("{:02}-{}.txt", number_, stage), to_string(level));
    }
    ++number_;
    return level;
  }

 private:
  std::filesystem::path directory_;
  int number_ = 0;
};

// The memory plan comes last: before it, buffers have no offsets to verify. Streams come before it,
// since what another stream uses must lie apart for longer.
Program to_program(const Graph& graph,
                   std::int64_t num_microbatches,
                   const CompileOptions& options) {
  Program program = lower(
      graph, {.num_microbatches = num_microbatches, .workspace_bytes = options.workspace_bytes});
  if (options.overlap) {
    program = overlap(std::move(program), options.overlap_layers);
  }
  if (options.beside != nullptr) {
    program = share_states(std::move(program), *options.beside);
  }
  return plan_memory(std::move(program));
}

// From the graph of all ranks to that of each, whose outputs are partial over `summed`.
Graph cut_over_ranks(Stages& stage,
                     Graph graph,
                     const UpdateOptions& update,
                     const AxisSizes& summed) {
  if (update.dims.empty()) {
    return graph;
  }
  const LaidOutGraph laid_out =
      stage("propagate_layouts", propagate_layouts(std::move(graph), update.dims, summed));
  graph = stage("localize", localize(laid_out));
  return stage("resolve_reshards", resolve_reshards(graph));
}

// What the ops of a forward graph are told of the run.
Graph choose(Stages& stage, Graph graph, const CompileOptions& options) {
  if (options.attention != AttentionChoices()) {
    graph = stage("choose_attention", choose_attention(std::move(graph), options.attention));
  }
  if (options.round_logits) {
    graph = stage("round_logits", round_logits(std::move(graph)));
  }
  if (options.logits_bytes > 0) {
    graph = stage("chunk_loss", chunk_loss(std::move(graph), options.logits_bytes));
  }
  return graph;
}

}  // namespace

Program compile_training(Graph forward, const CompileOptions& options) {
  Stages stage(options.dump);
  Graph graph = stage("forward", std::move(forward));

  // Before differentiation, so that backward hears of it.
  graph = choose(stage, std::move(graph), options);

  // Gradients of every parameter, by the ops' own rules.
  graph = stage("differentiate", differentiate(std::move(graph)));

  // While a gradient is still what one product makes.
  if (options.round_gradients) {
    TESSERA_CHECK(options.update.num_microbatches == 1 && options.update.state.axes.empty(),
                  "gradients that are added up are f32");
    graph = stage("round_gradients", round_gradients(std::move(graph)));
  }

  // Before the graph is cut, so that a scale is that of the whole; after differentiation, which
  // then passes gradients straight through the rounding.
  if (options.float8) {
    graph = stage("quantize_products", quantize_products(graph, *options.float8));
  }

  graph = cut_over_ranks(stage, std::move(graph), options.update, options.update.state.axes);

  graph = stage("bias_products", bias_products(graph));

  // Which products run as one GEMM is decided while the model's structure is still plain to see.
  if (options.group_gemms) {
    graph = stage("group_gemms", group_gemms(graph));
  }

  // Parameters at rest as slices, gathered where they are used.
  if (options.update.state.param > 0) {
    graph = stage("shard_parameters", shard_parameters(graph, options.update.state));
  }

  // What the step does with gradients: reduce, accumulate, clip, update.
  graph = stage("append_update", append_update(std::move(graph), options.update));

  // Before recompute_layers(), so that what is computed again is the same op.
  if (options.gelu_products) {
    graph = stage("gelu_products", gelu_products(graph));
  }

  // Before fusion, which joins nodes across the line between kept and recomputed values.
  if (options.recompute) {
    graph = stage("recompute_layers", recompute_layers(graph));
  }
  if (options.fuse) {
    graph = stage("fuse", fuse(graph));
  }
  graph = stage("join_accumulation", join_accumulation(graph));
  return stage("program", to_program(graph, options.update.num_microbatches, options));
}

Program compile_forward(Graph forward, const CompileOptions& options) {
  Stages stage(options.dump);
  Graph graph = stage("forward", std::move(forward));
  graph = choose(stage, std::move(graph), options);
  // On the model as it was written: later passes look at what reads keys and values.
  if (options.cache_length > 0) {
    graph = stage("cache_attention", cache_attention(graph, options.cache_length));
  }
  if (options.float8) {
    graph = stage("quantize_products", quantize_products(graph, *options.float8));
  }
  const AxisSizes summed = options.sum_outputs ? options.update.state.axes : AxisSizes();
  graph = cut_over_ranks(stage, std::move(graph), options.update, summed);
  graph = stage("bias_products", bias_products(graph));
  // The same groups as in training, so that their weights lie as they do there.
  if (options.group_gemms) {
    graph = stage("group_gemms", group_gemms(graph));
  }
  if (options.update.state.param > 0) {
    graph = stage("shard_parameters", shard_parameters(graph, options.update.state));
  }
  if (!summed.empty()) {
    graph = stage("sum_outputs", sum_outputs(std::move(graph), options.update.state));
  }
  if (options.gelu_products) {
    graph = stage("gelu_products", gelu_products(graph));
  }
  if (options.fuse) {
    graph = stage("fuse", fuse(graph));
  }
  return stage("program", to_program(graph, 1, options));
}

}  // namespace tessera
