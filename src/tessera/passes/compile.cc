#include "tessera/passes/compile.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "tessera/autodiff/differentiate.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/passes/graph/add_dropout.h"
#include "tessera/passes/graph/cache_attention.h"
#include "tessera/passes/graph/chunk_loss.h"
#include "tessera/passes/graph/fuse.h"
#include "tessera/passes/graph/group_gemms.h"
#include "tessera/passes/graph/join_accumulation.h"
#include "tessera/passes/graph/product_epilogues.h"
#include "tessera/passes/graph/round_gradients.h"
#include "tessera/passes/graph/round_logits.h"
#include "tessera/passes/graph/slice_tokens.h"
#include "tessera/passes/graph/whole_keys.h"
#include "tessera/passes/memory/offload_layers.h"
#include "tessera/passes/memory/offload_states.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/passes/memory/recompute_layers.h"
#include "tessera/passes/memory/share_states.h"
#include "tessera/passes/pass_dump.h"
#include "tessera/passes/program/add_tied_transfers.h"
#include "tessera/passes/program/add_transfers.h"
#include "tessera/passes/program/assign_slots.h"
#include "tessera/passes/program/gather_beside.h"
#include "tessera/passes/program/overlap.h"
#include "tessera/passes/program/spread_slots.h"
#include "tessera/passes/program/tensor_beside.h"
#include "tessera/passes/ranks/gather_ahead.h"
#include "tessera/passes/ranks/localize.h"
#include "tessera/passes/ranks/propagate_layouts.h"
#include "tessera/passes/ranks/resolve_reshards.h"
#include "tessera/passes/ranks/ring_attention.h"
#include "tessera/passes/ranks/shard_parameters.h"
#include "tessera/passes/stages/scatter_hops.h"
#include "tessera/passes/stages/share_tied.h"
#include "tessera/passes/stages/split_backward.h"
#include "tessera/passes/stages/work_order.h"

namespace tessera {
namespace {

// A pass that takes an `In` alone, and one that takes the compilation, too.
template <class In, auto kPass>
Representation plain(Representation form, const Compilation& /*c*/) {
  return kPass(std::get<In>(std::move(form)));
}

template <class In>
constexpr auto on(auto run) -> Representation (*)(Representation, const Compilation&) {
  return [](Representation form, const Compilation& c) -> Representation {
    return decltype(run)()(std::get<In>(std::move(form)), c);
  };
}

bool always(const Compilation& /*c*/) {
  return true;
}

bool has_ranks(const Compilation& c) {
  return !c.options.update.dims.empty();
}

bool has_pipeline(const Compilation& c) {
  return c.options.pipeline.has_value();
}

std::int64_t slices_of(const Compilation& c) {
  return has_pipeline(c) ? c.options.pipeline->cut.num_slices() : 1;
}

std::span<const WorkStep> works_of(const Compilation& c) {
  return c.options.pipeline->order[static_cast<std::size_t>(c.pipeline_rank)];
}

// Forward alone is of one microbatch, but in a pipeline.
bool has_microbatches(const Compilation& c) {
  return c.trains || has_pipeline(c);
}

bool splits_backward_of(const Compilation& c) {
  return has_pipeline(c) && splits_backward(works_of(c));
}

// Microbatches add up by use, so that the sum does not depend on where uses are computed; those of
// a pipeline may be computed on several ranks.
GradientUses uses_in(const Compilation& c) {
  return c.options.update.num_microbatches > 1 || has_pipeline(c) ? GradientUses::kApart
                                                                  : GradientUses::kSummed;
}

// Whether a microbatch's gradients are written, then added to sums in f32.
bool adds_apart(const Compilation& c) {
  return c.trains && !c.options.joins_accumulation && c.options.update.num_microbatches > 1;
}

// Whether they are written in the dtype of products: unless ranks sum them up before.
bool rounds_apart(const Compilation& c) {
  return adds_apart(c) && c.options.update.state.grad == 0;
}

// Codes that are kept anyway serve all microbatches, unless the parameter is cut: then it is
// gathered anew for each.
WeightCodes weight_codes(const Compilation& c) {
  return c.trains && c.options.float8->keep_weight_codes && c.options.update.num_microbatches > 1 &&
                 c.options.update.state.param == 0
             ? WeightCodes::kOnceAStep
             : WeightCodes::kEachMicrobatch;
}

UpdateOptions update_options(const Compilation& c) {
  UpdateOptions options = c.options.update;
  if (has_pipeline(c)) {
    options.slices = slices_of(c);
    options.pipeline = c.options.pipeline->cut.axes;
    options.norm_sums = c.norm_sums;
    options.tied = c.tied;
    options.pipeline_rank = c.pipeline_rank;
  }
  return options;
}

const AxisSizes& context_axes(const Compilation& c) {
  return axes_of_dim({.name = "seq"}, c.options.update.dims);
}

bool cuts_sequences(const Compilation& c) {
  return !context_axes(c).empty();
}

const AxisSizes& tensor_axes(const DimAxes& dims) {
  return axes_of_dim({.name = "heads"}, dims);
}

bool scatters_hops(const Compilation& c) {
  return has_pipeline(c) && c.options.scatter_hops && !tensor_axes(c.options.update.dims).empty();
}

// add_adapters() runs earlier, on the graph of a model (plan/graphs.cc).
constexpr std::array kPasses = {
    Pass{"choose_attention",
         [](const Compilation& c) { return c.options.attention != AttentionChoices(); },
         on<Graph>([](Graph graph, const Compilation& c) {
           return choose_attention(std::move(graph), c.options.attention);
         }),
         "of a forward graph: backward follows it"},
    Pass{"round_logits",
         [](const Compilation& c) { return c.options.round_logits; },
         plain<Graph, round_logits>,
         "before chunk_loss, whose chunks are then twice as long"},
    Pass{"chunk_loss",
         [](const Compilation& c) { return c.options.logits_bytes > 0; },
         on<Graph>([](Graph graph, const Compilation& c) {
           return chunk_loss(std::move(graph), c.options.logits_bytes);
         }),
         "of a forward graph: backward follows it"},
    Pass{"slice_tokens",
         [](const Compilation& c) { return slices_of(c) > 1; },
         on<Graph>([](const Graph& graph, const Compilation& c) {
           return slice_tokens(graph, c.options.pipeline->cut.slice_lengths);
         }),
         "after what is chosen of forward ops, alike for all slices; backward follows it"},
    Pass{"unfuse_attention",
         [](const Compilation& c) {
           return c.options.attention_kernels != AttentionKernels::kFlash;
         },
         on<Graph>([](Graph graph, const Compilation& c) {
           return unfuse_attention(std::move(graph), c.options.attention_kernels);
         }),
         "after slice_tokens, which knows attention; backward follows it"},
    Pass{"whole_keys",
         cuts_sequences,
         plain<Graph, whole_keys>,
         "after unfuse_attention, whose softmax reads ids of keys, too; before the graph is cut"},
    Pass{"add_dropout",
         [](const Compilation& c) { return c.trains && c.options.dropout.has_value(); },
         on<Graph>([](const Graph& graph, const Compilation& c) {
           TESSERA_REQUIRE(slices_of(c) == 1,
                           ErrorCode::kUnsupported,
                           "dropout of {} token slices, whose places in their sequences its masks "
                           "would need: expected pipeline.slices = 1",
                           slices_of(c));
           return add_dropout(graph, *c.options.dropout);
         }),
         "after unfuse_attention, whose probabilities it drops; backward follows it"},
    Pass{"cache_attention",
         [](const Compilation& c) { return c.options.cache_length > 0; },
         on<Graph>([](const Graph& graph, const Compilation& c) {
           return cache_attention(graph, c.options.cache_length);
         }),
         "on the model as it was written: later passes change what reads keys and values"},
    Pass{"differentiate",
         [](const Compilation& c) { return c.trains; },
         on<Graph>([](Graph graph, const Compilation& c) {
           return differentiate(std::move(graph), uses_in(c));
         }),
         "after what is chosen of forward ops"},
    Pass{"round_gradients",
         [](const Compilation& c) {
           return c.trains && (c.options.round_gradients || rounds_apart(c));
         },
         on<Graph>([](Graph graph, const Compilation& c) {
           TESSERA_CHECK(rounds_apart(c) || (c.options.update.num_microbatches == 1 &&
                                             c.options.update.state.axes.empty()),
                         "sums of gradients are f32");
           return round_gradients(std::move(graph));
         }),
         "while a gradient is still what one product makes"},
    Pass{"quantize_products",
         [](const Compilation& c) { return c.options.float8.has_value(); },
         on<Graph>([](const Graph& graph, const Compilation& c) {
           return quantize_products(graph, *c.options.float8, weight_codes(c));
         }),
         "after differentiate, which passes gradients straight through rounding; before the graph "
         "is cut, so that a scale is that of the whole"},
    Pass{"propagate_layouts",
         has_ranks,
         on<Graph>([](Graph graph, const Compilation& c) {
           return propagate_layouts(std::move(graph), c.options.update.dims, c.summed());
         }),
         "on the graph of all ranks, backward included"},
    Pass{"scatter_hops",
         scatters_hops,
         on<LaidOutGraph>([](LaidOutGraph laid_out, const Compilation& c) {
           return scatter_hops(
               std::move(laid_out), c.options.pipeline->cut, tensor_axes(c.options.update.dims));
         }),
         "while it is known what lies whole on which ranks"},
    Pass{"localize", has_ranks, plain<LaidOutGraph, localize>, "as soon as layouts are known"},
    Pass{"resolve_reshards",
         has_ranks,
         plain<Graph, resolve_reshards>,
         "as soon as reshards are written"},
    Pass{"ring_attention",
         [](const Compilation& c) { return cuts_sequences(c) && c.options.attention.ring; },
         on<Graph>([](const Graph& graph, const Compilation& c) {
           return ring_attention(graph, context_axes(c));
         }),
         "on local shapes, at once: before it attention of a rank is none"},
    Pass{"bias_products",
         always,
         plain<Graph, bias_products>,
         "on local shapes, before products are grouped"},
    Pass{"group_gemms",
         [](const Compilation& c) { return c.options.group_gemms; },
         plain<Graph, group_gemms>,
         "on local shapes, while the model's structure is still plain to see; in forward alone as "
         "in training, so that weights lie as they do there"},
    Pass{
        "cut_stages",
        has_pipeline,
        on<Graph>([](const Graph& graph, const Compilation& c) {
          return cut_stages(graph, c.options.pipeline->cut, c.pipeline_rank);
        }),
        "on local shapes, so that both ends of a boundary have one layout; before what a rank does "
        "to its own parameters. From here on each pipeline rank has a graph of its own"},
    Pass{"shard_parameters",
         [](const Compilation& c) { return c.options.update.state.param > 0; },
         on<Graph>([](const Graph& graph, const Compilation& c) {
           return shard_parameters(graph, c.options.update.state, c.options.update.dims);
         }),
         "after group_gemms, which looks for products of parameters"},
    Pass{"append_update",
         [](const Compilation& c) { return c.trains; },
         on<Graph>([](Graph graph, const Compilation& c) {
           return append_update(std::move(graph), update_options(c));
         }),
         "on the gradients as they will be made, in local shapes"},
    Pass{"sum_outputs",
         [](const Compilation& c) { return !c.trains && (!c.summed().empty() || has_pipeline(c)); },
         on<Graph>([](Graph graph, const Compilation& c) {
           UpdateOptions options = update_options(c);
           options.state.axes = c.summed();
           return sum_outputs(std::move(graph), options);
         }),
         "where append_update sums them in training"},
    Pass{"share_tied",
         has_pipeline,
         on<Graph>([](Graph graph, const Compilation& c) {
           return share_tied(std::move(graph), c.tied, c.pipeline_rank);
         }),
         "after append_update, for which it is a parameter still; before what changes readers"},
    Pass{"gather_ahead",
         [](const Compilation& c) { return c.trains && c.options.gathers_ahead; },
         plain<Graph, gather_ahead>,
         "after share_tied, whose parameters stay"},
    Pass{"gelu_products",
         [](const Compilation& c) { return c.options.gelu_products; },
         plain<Graph, gelu_products>,
         "before recompute_layers, so that what is computed again is the same op, and before fuse, "
         "which gives biases to gelu"},
    Pass{"recompute_layers",
         [](const Compilation& c) { return c.trains && !c.options.recompute.empty(); },
         on<Graph>([](const Graph& graph, const Compilation& c) {
           return recompute_layers(graph, c.options.recompute);
         }),
         "before fuse, which joins nodes across the line between kept and recomputed values"},
    Pass{"fuse",
         [](const Compilation& c) { return c.options.fuse || slices_of(c) > 1; },
         on<Graph>([](Graph graph, const Compilation& c) {
           return c.options.fuse ? fuse(std::move(graph)) : fuse_loss(std::move(graph));
         }),
         "on all nodes that there will be; of slices the loss always, so that sums are the same"},
    Pass{"join_accumulation",
         [](const Compilation& c) { return c.trains && !adds_apart(c); },
         plain<Graph, join_accumulation>,
         "after fuse, whose joint nodes make gradients, too"},
    Pass{"split_backward",
         splits_backward_of,
         plain<Graph, split_backward>,
         "on the nodes as they will be: what of them is a weight gradient's alone"},
    Pass{"lower",
         always,
         on<Graph>(
             [](const Graph& graph, const Compilation& c) {
               return lower(
                   graph,
                   {.num_microbatches = has_microbatches(c) ? c.options.update.num_microbatches : 1,
                    .splits_backward = splits_backward_of(c),
                    .is_summed = c.trains,
                    .workspace_bytes = c.options.workspace_bytes});
             }),
         "from here on places in memory and an order"},
    Pass{"order_calls",
         has_pipeline,
         on<Program>(
             [](Program program, const Compilation& c) {
               return order_calls(std::move(program), works_of(c));
             }),
         "before overlap, which works between one call and the next"},
    Pass{"overlap",
         [](const Compilation& c) { return c.options.overlap; },
         on<Program>([](Program program, const Compilation& c) {
           return overlap(std::move(program), c.options.overlap_layers);
         }),
         "before plan_memory: what another stream uses must lie apart for longer"},
    Pass{"gather_beside",
         [](const Compilation& c) { return c.options.overlap && c.options.gathers_ahead; },
         plain<Program, gather_beside>,
         "after overlap, which cuts what waits for them"},
    Pass{"tensor_beside",
         [](const Compilation& c) {
           const bool has_rings = c.options.attention.ring && c.options.rings_beside;
           return c.options.tensor_beside || (c.options.overlap && has_rings);
         },
         on<Program>([](Program program, const Compilation& c) {
           const bool rings_alone = c.options.attention.ring && !c.options.tensor_beside;
           return tensor_beside(std::move(program),
                                rings_alone ? TensorTraffic::kRings : TensorTraffic::kAll);
         }),
         "after overlap and gather_beside, which say what waits for training state; before the "
         "transfers, whose streams follow its own"},
    Pass{"add_transfers",
         has_pipeline,
         on<Program>(
             [](Program program, const Compilation& c) {
               return add_transfers(std::move(program), works_of(c), slices_of(c));
             }),
         "after overlap, which cuts the work that transfers come between"},
    Pass{"add_tied_transfers",
         has_pipeline,
         plain<Program, add_tied_transfers>,
         "after add_transfers: these come once a step, before or after all others"},
    Pass{"offload_states",
         [](const Compilation& c) { return c.trains && c.options.offload.moves_states(); },
         on<Program>([](Program program, const Compilation& c) {
           OffloadOptions options = c.options.offload;
           if (!c.options.moved_states.empty()) {
             options.moved = c.options.moved_states.at(static_cast<std::size_t>(c.pipeline_rank));
           }
           return offload_states(std::move(program), options);
         }),
         "after what adds streams and waits to the update; before lives are counted"},
    Pass{"share_states",
         [](const Compilation& c) { return !c.options.beside.empty(); },
         on<Program>([](Program program, const Compilation& c) {
           return share_states(std::move(program),
                               *c.options.beside[static_cast<std::size_t>(c.pipeline_rank)]);
         }),
         "where offload_states places them in training; before plan_memory, which lays the rest "
         "around the states"},
    Pass{"offload_layers",
         [](const Compilation& c) {
           const OffloadOptions& offload = c.options.offload;
           return offload.moves_states() || offload.activations != Space::kDevice;
         },
         on<Program>([](Program program, const Compilation& c) {
           return offload_layers(std::move(program), c.options.offload);
         }),
         "once it is known where states lie; before assign_slots, for what it stores in slots"},
    Pass{"assign_slots",
         always,
         plain<Program, assign_slots>,
         "after overlap and the transfers, which decide what lives into later calls"},
    Pass{"spread_slots",
         has_pipeline,
         plain<Program, spread_slots>,
         "where microbatches are in flight by the schedule, so that memory is placed life by life"},
    Pass{
        "plan_memory", always, plain<Program, plan_memory>, "last: nothing changes lives after it"},
};

// Where the programs of a pipeline's ranks part.
const Pass* fork_of_pipeline() {
  return std::ranges::find(kPasses, "cut_stages", &Pass::name);
}

const Pass* recompute_pass() {
  return std::ranges::find(kPasses, "recompute_layers", &Pass::name);
}

void verify_form(const Representation& form) {
  if (const auto* graph = std::get_if<Graph>(&form)) {
    verify(*graph);
  } else if (const auto* laid_out = std::get_if<LaidOutGraph>(&form)) {
    verify(*laid_out);
  }
}

Representation run_passes(Representation form,
                          std::span<const Pass> passes,
                          const Compilation& compilation,
                          PassDump& dump) {
  for (const Pass& pass : passes) {
    if (!pass.when(compilation)) {
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    form = pass.run(std::move(form), compilation);
    verify_form(form);
    dump.add(pass.name, form, seconds_since(start));
  }
  return form;
}

Representation begin(Graph forward, PassDump& dump) {
  Representation form = std::move(forward);
  verify_form(form);
  dump.add("forward", form, 0.0);
  return form;
}

Program verified(Representation form) {
  verify(std::get<Program>(form));
  return std::get<Program>(std::move(form));
}

Program compile(Graph forward, const Compilation& compilation) {
  TESSERA_CHECK(!has_pipeline(compilation), "one program is asked for, of several pipeline ranks");
  PassDump dump(compilation.options.dump);
  return verified(run_passes(begin(std::move(forward), dump), kPasses, compilation, dump));
}

// What the passes up to `end` make of it for each pipeline rank.
std::vector<Representation> run_for_ranks(Graph forward, Compilation compilation, const Pass* end) {
  const CompileOptions& options = compilation.options;
  const std::span<const Pass> all(kPasses.begin(), end);
  const auto fork = static_cast<std::size_t>(fork_of_pipeline() - kPasses.begin());
  PassDump dump(options.dump);
  const Representation whole =
      run_passes(begin(std::move(forward), dump), all.first(fork), compilation, dump);
  const Graph& graph = std::get<Graph>(whole);
  const UpdateOptions& update = options.update;
  compilation.norm_sums = norm_sums(graph, update);
  compilation.tied = tied_parameters(graph, options.pipeline->cut, update.state, update.dims);
  std::vector<Representation> forms;
  for (std::size_t rank = 0; rank < options.pipeline->order.size(); ++rank) {
    compilation.pipeline_rank = static_cast<std::int64_t>(rank);
    PassDump own(options.dump.empty() ? options.dump : options.dump / format("rank-{}", rank));
    forms.push_back(run_passes(whole, all.subspan(fork), compilation, own));
  }
  return forms;
}

std::vector<Program> compile_ranks(Graph forward, const Compilation& compilation) {
  std::vector<Program> programs;
  for (Representation& form : run_for_ranks(std::move(forward), compilation, kPasses.end())) {
    programs.push_back(verified(std::move(form)));
  }
  return programs;
}

}  // namespace

PipelineOptions pipeline_options(const ActionTable& table,
                                 std::vector<std::int64_t> layers,
                                 std::vector<std::int64_t> slice_lengths,
                                 AxisSizes axes,
                                 TransferLaunch launch) {
  TESSERA_CHECK(std::ssize(slice_lengths) == (table.slices == 1 ? 0 : table.slices),
                "lengths of {} slices, the table has {}",
                slice_lengths.size(),
                table.slices);
  return {.cut = {.axes = std::move(axes),
                  .layers = std::move(layers),
                  .rank_of_stage = table.rank_of_stage,
                  .slice_lengths = std::move(slice_lengths)},
          .order = work_orders(table, launch)};
}

AxisSizes Compilation::summed() const {
  return trains || options.sum_outputs ? options.update.state.axes : AxisSizes();
}

std::span<const Pass> pass_list() {
  return kPasses;
}

Program compile_training(Graph forward, const CompileOptions& options) {
  return compile(std::move(forward), {.options = options, .trains = true});
}

std::vector<Graph> graphs_before_recompute(Graph forward, const CompileOptions& options) {
  const Compilation compilation = {.options = options, .trains = true};
  const Pass* const end = recompute_pass();
  std::vector<Representation> forms;
  if (has_pipeline(compilation)) {
    forms = run_for_ranks(std::move(forward), compilation, end);
  } else {
    PassDump dump(options.dump);
    forms.push_back(run_passes(
        begin(std::move(forward), dump), std::span(kPasses.begin(), end), compilation, dump));
  }
  std::vector<Graph> graphs;
  for (Representation& form : forms) {
    graphs.push_back(std::get<Graph>(std::move(form)));
  }
  return graphs;
}

std::vector<Program> try_from_recompute(std::vector<Graph> graphs, const CompileOptions& options) {
  Compilation compilation = {.options = options, .trains = true};
  std::vector<Program> programs;
  for (Graph& graph : graphs) {
    compilation.pipeline_rank = std::ssize(programs);
    Representation form = std::move(graph);
    for (const Pass* pass = recompute_pass(); pass != kPasses.end(); ++pass) {
      if (pass->when(compilation)) {
        form = pass->run(std::move(form), compilation);
      }
    }
    programs.push_back(std::get<Program>(std::move(form)));
  }
  return programs;
}

std::vector<Program> compile_pipeline(Graph forward, const CompileOptions& options) {
  return compile_ranks(std::move(forward), {.options = options, .trains = true});
}

std::vector<Program> compile_pipeline_forward(Graph forward, const CompileOptions& options) {
  return compile_ranks(std::move(forward), {.options = options, .trains = false});
}

Program compile_forward(Graph forward, const CompileOptions& options) {
  return compile(std::move(forward), {.options = options, .trains = false});
}

}  // namespace tessera
