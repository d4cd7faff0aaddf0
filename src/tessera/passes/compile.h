#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/actions/action_table.h"
#include "tessera/ir/graph.h"
#include "tessera/mesh/axes.h"
#include "tessera/passes/graph/choose_attention.h"
#include "tessera/passes/graph/group_gemms.h"
#include "tessera/passes/graph/product_epilogues.h"
#include "tessera/passes/graph/quantize_products.h"
#include "tessera/passes/graph/round_gradients.h"
#include "tessera/passes/graph/round_logits.h"
#include "tessera/passes/graph/unfuse_attention.h"
#include "tessera/passes/memory/offload_states.h"
#include "tessera/passes/memory/recompute_rule.h"
#include "tessera/passes/program/lower.h"
#include "tessera/passes/program/order_calls.h"
#include "tessera/passes/ranks/append_update.h"
#include "tessera/passes/ranks/laid_out_graph.h"
#include "tessera/passes/stages/cut_stages.h"
#include "tessera/passes/stages/work_order.h"
#include "tessera/program/program.h"

namespace tessera {

// A training step that ranks do one after the other, each for a part of the layers.
struct PipelineOptions {
  PipelineCut cut;
  std::vector<std::vector<WorkStep>> order;  // by pipeline rank: work_orders()
};

// By a schedule: `layers` by its stages, `slice_lengths` the tokens of its slices (none: it has
// whole sequences), `axes` those of its ranks. Errors: as work_orders().
PipelineOptions pipeline_options(const ActionTable& table,
                                 std::vector<std::int64_t> layers,
                                 std::vector<std::int64_t> slice_lengths,
                                 AxisSizes axes,
                                 TransferLaunch launch);

struct CompileOptions {
  UpdateOptions update = {};
  std::optional<Float8Options> float8 = {};  // none: products as the model has them
  AttentionChoices attention = {};           // not with caches
  AttentionKernels attention_kernels = AttentionKernels::kFlash;
  std::optional<double> dropout = {};  // its rate, where attention is unfused; none: no such ops
  std::int64_t logits_bytes = 0;       // of a chunk of the loss; 0: as the model has it
  bool round_logits = false;           // to bf16
  bool round_gradients = false;        // of one microbatch and data rank, to bf16
  RecomputeRules recompute = {};
  bool fuse = true;
  bool group_gemms = true;
  bool gelu_products = false;
  bool joins_accumulation = true;  // gradients are added up by what makes them
  bool scatter_hops = false;       // along the pipeline, of what tensor ranks all have
  bool gathers_ahead = false;      // of updated parameters, in the next step's start
  bool tensor_beside = false;      // collectives of activations beside products
  bool rings_beside = true;        // with overlap, ring shifts: where further streams have groups
  std::optional<PipelineOptions> pipeline = {};
  bool overlap = false;             // collectives of training state on a stream of their own
  std::int64_t overlap_layers = 1;  // how many layers they may be ahead of or behind the others
  OffloadOptions offload = {};
  std::vector<OffloadedBytes> moved_states = {};  // by pipeline rank; none: as `offload` says
  // Forward alone: the planned program beside whose steps it runs, in the same arena and on the
  // same states (share_states()), of each pipeline rank; none: it is alone. Borrowed.
  std::vector<const Program*> beside = {};
  // Forward alone, on many ranks: whether outputs become sums over all; else each data rank's are
  // those of its own inputs, whose batch is then cut over no axes.
  bool sum_outputs = true;
  std::int64_t cache_length = 0;  // rows of the caches of keys and values; 0: none
  // A directory that gets the text of every level, and in passes.txt what each pass took and
  // whether it changed anything; empty: none.
  std::filesystem::path dump = {};
  WorkspaceQuery workspace_bytes = {};
};

// What passes take and make: a graph, a graph with layouts, a program.
using Representation = std::variant<Graph, LaidOutGraph, Program>;

// What a compilation is of: a training step, or a forward pass alone.
struct Compilation {
  const CompileOptions& options;
  bool trains;
  // From cut_stages on: whose program it becomes, and the norm's sums and the parameters of several
  // pipeline ranks of the whole model.
  std::int64_t pipeline_rank = 0;
  NormSums norm_sums = {};
  TiedParameters tied = {};

  // The axes over whose ranks losses, statistics and gradients become sums.
  AxisSizes summed() const;
};

// A row of the pass list.
struct Pass {
  std::string_view name;
  bool (*when)(const Compilation&);
  Representation (*run)(Representation, const Compilation&);
  std::string_view why_here;
};

// All passes, in the order in which they run.
std::span<const Pass> pass_list();

// The program of a training step from the model's forward graph, whose output of kind loss is the
// sum over valid tokens. Verified after every pass; the program once it is planned, before which
// buffers have no offsets.
Program compile_training(Graph forward, const CompileOptions& options);

// The same where options.pipeline says how ranks share the layers: a program for each of them. What
// all have in common is done once. A dump has a folder "rank-N" for each.
std::vector<Program> compile_pipeline(Graph forward, const CompileOptions& options);

// The graphs of a training step as recompute_layers takes them, of each pipeline rank; and the
// programs of these, as the other passes make them. So several rules are tried in less time, and
// nothing is verified: verify() is for the programs that are kept.
std::vector<Graph> graphs_before_recompute(Graph forward, const CompileOptions& options);
std::vector<Program> try_from_recompute(std::vector<Graph> graphs, const CompileOptions& options);

// The program of a forward pass alone. On many ranks (options.update.dims, .state) its loss and
// statistics are sums over the tokens of one, and become those over all, unless options say
// otherwise.
Program compile_forward(Graph forward, const CompileOptions& options);

// The same where options.pipeline says how ranks share the layers: a program for each of them, of
// options.update.num_microbatches microbatches. Each microbatch has outputs of its own, in the slot
// of its number, which all ranks get.
std::vector<Program> compile_pipeline_forward(Graph forward, const CompileOptions& options);

}  // namespace tessera
