#include "tessera/passes/ranks/append_update.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/autodiff/differentiate.h"
#include "tessera/base/error.h"
#include "tessera/ir/builder.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/passes/ranks/state_axes.h"
#include "tessera/passes/ranks/tied_gradients.h"
#include "tessera/program/step_names.h"

namespace tessera {
namespace {

TensorType f32_like(const TensorType& type) {
  return with_dtype(type, DType::kF32);
}

// cross_entropy adds up the head's gradient over chunks of rows; it goes on over microbatches in
// the same chain instead of adding a second full-size tensor. Null where `gradient` is made
// otherwise.
OpRef chained_loss(const Graph& graph, ValueId gradient) {
  const Node& node = graph.nodes[graph[gradient].producer.at()];
  const auto* attrs = node.op->get_if<CrossEntropyAttrs>();
  if (attrs == nullptr || !attrs->gradients || node.results.back() != gradient) {
    return nullptr;
  }
  CrossEntropyAttrs chained = *attrs;
  chained.accumulate = true;
  return make_op(chained);
}

// Replaces the op of `id` by `op`, which takes `state` as one more operand.
void chain(GraphEdit& edit, NodeId id, const OpRef& op, ValueId state) {
  Node node = edit.node(id);
  node.op = op;
  node.operands.push_back(state);
  edit.remove(id);
  edit.insert(id, std::move(node));
}

bool is_gradient(const Output& output) {
  return output.kind == OutputKind::kGradient;
}

// Reduces each gradient to this rank's slice, right after it is made, but for those of the
// parameters `later`.
Graph reduce_gradients(const Graph& graph,
                       const UpdateOptions& options,
                       const std::set<std::string>& later) {
  GraphEdit edit(graph);
  std::vector<Output> outputs = graph.outputs;
  for (Output& output : outputs) {
    if (!is_gradient(output) || later.contains(output.parameter)) {
      continue;
    }
    const TensorType& type = graph[output.value].type;
    const StateAxes state = state_axes_of(type, options.dims, options.state);
    if (state.grad == 0) {
      continue;
    }
    const Wire wire = part_of(state, state.wires.grad, 0, state.grad);
    const NodeId producer = graph[output.value].producer;
    const Node& made_by = graph.nodes[producer.at()];
    const ValueId slice = edit.fresh();
    edit.insert(NodeId::of(producer.at() + 1),
                {.op = make_op(ReduceSlicesAttrs{.axes = axes_between(state, 0, state.grad),
                                                 .slice = slice_elements(state, type, state.grad),
                                                 .wire = wire.formats,
                                                 .block = wire.block}),
                 .operands = {output.value},
                 .results = {slice},
                 .phase = made_by.phase,
                 .layer = made_by.layer,
                 .chunk = made_by.chunk});
    output.value = slice;
  }
  edit.set_outputs(std::move(outputs));
  return edit.apply();
}

// The state that an output's sum over the microbatches is.
State accumulator_of(const Output& output) {
  return is_gradient(output)
             ? State{.parameter = output.parameter, .role = StateRole::kGradient, .use = output.use}
             : State{.role = StateRole::kSum};
}

// What a sum over the microbatches, and over the slices of each, is called.
// `with_uses`: the parameters that have several.
std::string sum_name(const std::set<std::string>& with_uses, const Output& output) {
  if (!is_gradient(output)) {
    return output.name;
  }
  return with_uses.contains(output.parameter) ? gradient_name(output.parameter, output.use)
                                              : gradient_name(output.parameter);
}

// Inserts, right after each accumulated value is made, its addition to a state of the same name,
// which the output, of the kind that it was, then updates.
Graph accumulate(const Graph& graph) {
  Graph with_states = graph;

  struct Sum {
    ValueId state;
    std::size_t output;
  };

  std::set<std::string> with_uses;
  for (const Output& output : graph.outputs) {
    if (is_gradient(output) && output.use > 0) {
      with_uses.insert(output.parameter);
    }
  }
  std::vector<Sum> sums;
  std::map<std::pair<std::string, std::int32_t>, ValueId> of_gradients;  // by parameter and use
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const Output& output = graph.outputs[i];
    const auto add_state = [&] {
      return with_states.add_state(
          accumulator_of(output), sum_name(with_uses, output), f32_like(graph[output.value].type));
    };
    if (!is_gradient(output)) {
      sums.push_back({.state = add_state(), .output = i});
      continue;
    }
    const auto [found, is_new] = of_gradients.try_emplace({output.parameter, output.use});
    if (is_new) {
      found->second = add_state();
    }
    sums.push_back({.state = found->second, .output = i});
  }
  GraphEdit edit(with_states);
  std::vector<Output> outputs;
  for (const Sum& sum : sums) {
    Output output = graph.outputs[sum.output];
    output.updates = sum.state;
    const NodeId producer = graph[output.value].producer;
    TESSERA_CHECK(producer.valid(), "output {} is not computed", output.name);
    const Node& made_by = graph.nodes[producer.at()];
    if (const OpRef chained = chained_loss(graph, output.value)) {
      chain(edit, producer, chained, sum.state);
      outputs.push_back(std::move(output));
      continue;
    }
    const ValueId total = edit.fresh();
    edit.insert(NodeId::of(producer.at() + 1),
                {.op = make_op(AddAttrs{}),
                 .operands = {sum.state, output.value},
                 .results = {total},
                 .phase = made_by.phase,
                 .layer = made_by.layer,
                 .chunk = made_by.chunk});
    output.value = total;
    outputs.push_back(std::move(output));
  }
  edit.set_outputs(std::move(outputs));
  return edit.apply();
}

// By parameter, that of its first use.
std::map<std::string, TensorType> types_of_gradients(const Graph& graph) {
  std::map<std::string, TensorType> types;
  for (const Output& output : graph.outputs) {
    if (is_gradient(output)) {
      types.try_emplace(output.parameter, graph[output.value].type);
    }
  }
  return types;
}

// The sums that microbatches leave for the update.
struct Sums {
  GradientsOfUses gradients;
  ValueId loss;
  std::vector<Output> statistics;
};

// Takes the sums out of the outputs of `graph`; those that update accumulators stay as updates.
Sums take_sums(Graph& graph) {
  Sums sums;
  std::vector<Output> kept;
  for (Output& output : graph.outputs) {
    if (output.updates) {
      kept.push_back({.name = output.name, .value = output.value, .updates = output.updates});
    }
    switch (output.kind) {
      case OutputKind::kGradient:
        sums.gradients[output.parameter].try_emplace(output.use, output.value);
        break;
      case OutputKind::kLoss:
        sums.loss = output.value;
        break;
      case OutputKind::kStatistic:
        sums.statistics.push_back(std::move(output));
        break;
      case OutputKind::kResult:
        fail(
            ErrorCode::kInvalidArgument,
            "output {} of a training graph is a result, expected a loss, a statistic or a gradient",
            output.name);
    }
  }
  graph.outputs = std::move(kept);
  TESSERA_REQUIRE(sums.loss.valid(),
                  ErrorCode::kInvalidArgument,
                  "graph {} has no output of kind loss",
                  graph.name);
  return sums;
}

// The sum over the uses of a parameter, in their order.
Value sum_of_uses(GraphBuilder& builder, const std::map<std::int32_t, ValueId>& gradients) {
  Value sum = builder.handle(gradients.begin()->second);
  for (auto use = std::next(gradients.begin()); use != gradients.end(); ++use) {
    sum = add(sum, builder.handle(use->second));
  }
  return sum;
}

// The sum over all ranks: those along `axes`, and those of the pipeline.
Value sum_along(GraphBuilder& builder,
                AxisSizes axes,
                const UpdateOptions& options,
                const Value& value) {
  axes.insert(axes.end(), options.pipeline.begin(), options.pipeline.end());
  return axes.empty() ? value : builder.emit(make_op(AllReduceAttrs{.axes = axes}), {value})[0];
}

Value sum_over_ranks(GraphBuilder& builder, const UpdateOptions& options, const Value& value) {
  const StateAxes& state = options.state;
  return sum_along(builder, axes_between(state, 0, state.axes.size()), options, value);
}

// The axes along which ranks hold different parts of a parameter's gradient: those that cut its
// dims, and those that cut its state.
AxisSizes axes_of_parts(AxisSizes cut, const StateAxes& state) {
  const AxisSizes slices = first_axes(state, state.optimizer);
  cut.insert(cut.end(), slices.begin(), slices.end());
  return cut;
}

// A trained parameter at the end of the step.
struct Trained {
  ValueId parameter;
  StateAxes state;  // its own
  AxisSizes cut;    // the axes that cut its dims
  Value gradient;   // what adamw takes
};

// The end of the step.
class Update {
 public:
  Update(GraphBuilder& builder, const UpdateOptions& options)
      : builder_(builder),
        options_(options),
        learning_rate_(builder.scalar(step_names::kLearningRate)),
        update_number_(builder.scalar(step_names::kUpdateNumber)),
        apply_(builder.scalar(step_names::kApply)) {}

  // `parameter`, whose gradient of `type` (the whole, of this rank's part) has been reduced over
  // its state.grad axes, unless it is `whole`.
  Trained reduced(ValueId parameter,
                  const Value& gradient,
                  const TensorType& type,
                  bool whole) const {
    const StateAxes state = state_axes_of(type, options_.dims, options_.state);
    const Wire& wire = state.wires.grad;
    const std::size_t all = state.axes.size();
    Value result = gradient;
    const auto reduce = [&](std::size_t begin, std::size_t end) {
      if (begin < end) {
        result = collective(ReduceSlicesAttrs{.axes = axes_between(state, begin, end),
                                              .slice = slice_elements(state, type, end),
                                              .wire = part_of(state, wire, begin, end).formats,
                                              .block = wire.block},
                            result);
      }
    };
    reduce(whole ? 0 : state.grad, state.grad);
    reduce(state.grad, state.optimizer);
    if (state.optimizer < all) {
      result = collective(
          AllReduceSlicesAttrs{.axes = axes_between(state, state.optimizer, all),
                               .wire = part_of(state, wire, state.optimizer, all).formats,
                               .block = wire.block},
          result);
    }
    return {.parameter = parameter,
            .state = state,
            .cut = axes_of(type, options_.dims),
            .gradient = result};
  }

  void run(const std::vector<Trained>& parameters, const Value& loss) const {
    std::vector<Value> operands = sums_of_squares(parameters);
    const ClipScaleAttrs clip{.clip = options_.clip,
                              .num_sums = static_cast<std::int64_t>(operands.size())};
    operands.insert(operands.end(), {loss, apply_});
    const auto clipped = builder_.emit(make_op(clip), operands);
    builder_.output(step_names::kLoss, loss, OutputKind::kLoss);
    builder_.output(step_names::kGradNorm, clipped[0]);
    builder_.output(step_names::kApplied, clipped[2]);
    for (const Trained& trained : parameters) {
      step(trained, clipped[1], clipped[2]);
    }
  }

 private:
  // One sum for the gradients of each cut, over the ranks that hold different parts of them.
  std::vector<Value> sums_of_squares(const std::vector<Trained>& parameters) const {
    NormSums all = options_.norm_sums;
    std::map<std::string, std::vector<Value>> by_text;
    for (const Trained& trained : parameters) {
      AxisSizes axes = axes_of_parts(trained.cut, trained.state);
      by_text[to_string(axes)].push_back(trained.gradient);
      all.try_emplace(to_string(axes), std::move(axes));
    }
    std::vector<Value> sums;
    for (const auto& [text, axes] : all) {
      const auto values = by_text.find(text);
      const Value sum = values == by_text.end() ? zero_sum() : sum_squares(values->second);
      sums.push_back(sum_along(builder_, axes, options_, sum));
    }
    return sums;
  }

  // That of no gradient.
  Value zero_sum() const {
    const TensorType type = infer(SumSquaresAttrs(), {})[0];
    return builder_.emit(make_op(FillAttrs{.type = type}), {})[0];
  }

  template <class Attrs>
  Value collective(Attrs attrs, const Value& operand) const {
    return builder_.emit(make_op(std::move(attrs)), {operand})[0];
  }

  // One parameter's adamw, on its slice.
  void step(const Trained& trained, const Value& scale, const Value& applied) const {
    const Value parameter = builder_.handle(trained.parameter);
    const Value& gradient = trained.gradient;
    const StateAxes& own = trained.state;
    const std::string name = builder_.graph()[parameter.id].name;
    // Where the parameter is gathered, its f32 master takes its place in adamw.
    const bool gathers = own.param < own.optimizer;
    const bool rounds = !gathers && parameter.type().dtype != DType::kF32;
    const auto state = [&](StateRole role, DType dtype) {
      return builder_.state({.parameter = name, .role = role},
                            format("{}.{}", tessera::name(role), name),
                            with_dtype(gradient.type(), dtype));
    };
    std::vector<Value> states = {gathers ? state(StateRole::kMaster, DType::kF32) : parameter,
                                 state(StateRole::kMoment1, options_.moments),
                                 state(StateRole::kMoment2, options_.moments)};
    if (rounds) {
      states.push_back(state(StateRole::kMaster, DType::kF32));
    }
    std::vector<Value> operands = states;
    operands.insert(operands.begin() + 1, gradient);
    operands.insert(operands.end(), {learning_rate_, update_number_, scale, applied});
    const double decay = options_.undecayed.contains(name) ? 0.0 : options_.weight_decay;
    const auto results = builder_.emit(make_op(AdamwAttrs{.beta1 = options_.beta1,
                                                          .beta2 = options_.beta2,
                                                          .eps = options_.eps,
                                                          .weight_decay = decay,
                                                          .master = rounds}),
                                       operands);
    for (std::size_t i = 0; i < states.size(); ++i) {
      builder_.update(states[i], results[i]);
    }
    Value content = results[0];
    if (gathers) {
      const DType dtype = parameter.type().dtype;
      const Value slice = dtype == DType::kF32 ? content : cast(content, dtype);
      const Wire wire = part_of(own, own.wires.update, own.param, own.optimizer);
      content =
          gathered(slice, {axes_between(own, own.param, own.optimizer), wire}, parameter.type());
      builder_.update(parameter, content);
    }
    if (const ValueId copy = builder_.graph().find_state(name, StateRole::kSecondary);
        copy.valid()) {
      const Value secondary = builder_.handle(copy);
      const Wire wire = builder_.graph()[copy].state.wire;
      builder_.update(
          secondary,
          gathered(content, {axes_between(own, own.secondary, own.param), wire}, secondary.type()));
    }
  }

  // The axes over which slices are gathered, and their wire.
  struct Gather {
    AxisSizes axes;
    const Wire& wire;
  };

  Value gathered(const Value& slice, const Gather& hop, const TensorType& type) const {
    return collective(
        GatherSlicesAttrs{
            .axes = hop.axes, .type = type, .wire = hop.wire.formats, .block = hop.wire.block},
        slice);
  }

  GraphBuilder& builder_;
  const UpdateOptions& options_;
  Value learning_rate_;
  Value update_number_;
  Value apply_;
};

// That a statistic can have a sum of its name, and be found by it.
void require_names(const Graph& graph) {
  std::set<std::string_view> taken = {step_names::kGradNorm, step_names::kApplied};
  for (const ValueInfo& value : graph.values) {
    if (value.kind != ValueKind::kResult) {
      taken.insert(value.name);
    }
  }
  for (const Output& output : graph.outputs) {
    TESSERA_REQUIRE(taken.insert(output.name).second,
                    ErrorCode::kInvalidArgument,
                    "output {} of a training graph has the name of a source or another output",
                    output.name);
  }
}

}  // namespace

Graph append_update(Graph graph, const UpdateOptions& options) {
  require_names(graph);
  const std::map<std::string, TensorType> gradient_types = types_of_gradients(graph);
  const std::set<std::string> summed_whole = summed_before_reduction(graph, options);
  if (options.state.grad > 0) {
    graph = reduce_gradients(graph, options, summed_whole);
  }
  if (options.adds_up()) {
    graph = accumulate(graph);
  }
  Sums sums = take_sums(graph);
  GraphBuilder builder(std::move(graph));
  builder.set_phase(Phase::kUpdate);
  exchange_tied(builder, options, sums.gradients);

  const Update update(builder, options);
  std::vector<Trained> parameters;
  for (const ValueId parameter : builder.graph().trained_parameters()) {
    const std::string name = builder.graph()[parameter].name;
    if (options.tied.is_copied(name, options.pipeline_rank)) {
      continue;
    }
    const auto found = sums.gradients.find(name);
    TESSERA_CHECK(found != sums.gradients.end(), "no gradient of {}", name);
    parameters.push_back(update.reduced(parameter,
                                        sum_of_uses(builder, found->second),
                                        gradient_types.at(name),
                                        summed_whole.contains(name)));
  }
  update.run(parameters, sum_over_ranks(builder, options, builder.handle(sums.loss)));
  for (const Output& statistic : sums.statistics) {
    builder.output(statistic.name,
                   sum_over_ranks(builder, options, builder.handle(statistic.value)),
                   OutputKind::kStatistic);
  }
  return builder.take();
}

NormSums norm_sums(const Graph& graph, const UpdateOptions& options) {
  NormSums sums;
  for (const auto& [parameter, type] : types_of_gradients(graph)) {
    AxisSizes axes = axes_of_parts(axes_of(type, options.dims),
                                   state_axes_of(type, options.dims, options.state));
    sums.try_emplace(to_string(axes), std::move(axes));
  }
  return sums;
}

Graph sum_outputs(Graph graph, const UpdateOptions& options) {
  const std::vector<Output> outputs = std::exchange(graph.outputs, {});
  GraphBuilder builder(std::move(graph));
  if (!options.pipeline.empty()) {
    builder.set_phase(Phase::kUpdate);
  }
  for (const Output& output : outputs) {
    TESSERA_CHECK(!output.updates && !is_gradient(output),
                  "output {} of a forward graph is a {}",
                  output.name,
                  output.updates ? "state" : "gradient");
    const Value value = builder.handle(output.value);
    builder.output(output.name,
                   is_sum(output.kind) ? sum_over_ranks(builder, options, value) : value,
                   output.kind);
  }
  return builder.take();
}

}  // namespace tessera
