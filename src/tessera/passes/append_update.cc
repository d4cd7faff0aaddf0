#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/autodiff/differentiate.h"
#include "tessera/base/error.h"
#include "tessera/ir/builder.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph_edit.h"
#include "tessera/passes/pass.h"
#include "tessera/passes/state_slices.h"
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
  return !output.updates && output.name != step_names::kLoss;
}

// Reduces each gradient to this rank's slice, right after it is made.
Graph reduce_gradients(const Graph& graph, const StateAxes& state) {
  GraphEdit edit(graph);
  std::vector<Output> outputs = graph.outputs;
  for (Output& output : outputs) {
    if (!is_gradient(output)) {
      continue;
    }
    const NodeId producer = graph[output.value].producer;
    const Node& made_by = graph.nodes[producer.at()];
    const ValueId slice = edit.fresh();
    edit.insert(NodeId::of(producer.at() + 1),
                {.op = make_op(ReduceSlicesAttrs{
                     .axes = axes_between(state, 0, state.grad),
                     .slice = slice_elements(state, graph[output.value].type, state.grad),
                     .wire = wire_between(state, state.wires.grad, 0, state.grad),
                     .block = state.wires.grad.block}),
                 .operands = {output.value},
                 .results = {slice},
                 .phase = made_by.phase,
                 .layer = made_by.layer});
    output.value = slice;
  }
  edit.set_outputs(std::move(outputs));
  return edit.apply();
}

// Inserts, right after each accumulated value is made, its addition to a state of the same name.
Graph accumulate(const Graph& graph) {
  Graph with_states = graph;

  struct Sum {
    ValueId state;
    std::size_t output;
  };

  std::vector<Sum> sums;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const Output& output = graph.outputs[i];
    sums.push_back({.state = with_states.add_source(
                        ValueKind::kGradient, output.name, f32_like(graph[output.value].type)),
                    .output = i});
  }
  GraphEdit edit(with_states);
  std::vector<Output> outputs;
  for (const Sum& sum : sums) {
    const Output& output = graph.outputs[sum.output];
    const NodeId producer = graph[output.value].producer;
    TESSERA_CHECK(producer.valid(), "output {} is not computed", output.name);
    const Node& made_by = graph.nodes[producer.at()];
    if (const OpRef chained = chained_loss(graph, output.value)) {
      chain(edit, producer, chained, sum.state);
      outputs.push_back({.name = output.name, .value = output.value, .updates = sum.state});
      continue;
    }
    const ValueId total = edit.fresh();
    edit.insert(NodeId::of(producer.at() + 1),
                {.op = make_op(AddAttrs{}),
                 .operands = {sum.state, output.value},
                 .results = {total},
                 .phase = made_by.phase,
                 .layer = made_by.layer});
    outputs.push_back({.name = output.name, .value = total, .updates = sum.state});
  }
  edit.set_outputs(std::move(outputs));
  return edit.apply();
}

std::map<std::string, TensorType> types_of_gradients(const Graph& graph) {
  std::map<std::string, TensorType> types;
  for (const Output& output : graph.outputs) {
    if (is_gradient(output)) {
      types[output.name] = graph[output.value].type;
    }
  }
  return types;
}

// The sum over all ranks.
Value sum_over_ranks(GraphBuilder& builder, const StateAxes& state, const Value& value) {
  return state.axes.empty()
             ? value
             : builder.emit(
                   make_op(AllReduceAttrs{.axes = axes_between(state, 0, state.axes.size())}),
                   {value})[0];
}

// The end of the step.
class Update {
 public:
  Update(GraphBuilder& builder, const UpdateOptions& options)
      : builder_(builder),
        options_(options),
        state_(options.state),
        learning_rate_(builder.scalar(step_names::kLearningRate)),
        update_number_(builder.scalar(step_names::kUpdateNumber)),
        apply_(builder.scalar(step_names::kApply)) {}

  // What adamw takes: the slice over the optimizer's axes (or all) of the global gradient of
  // `type`.
  Value reduced(const Value& gradient, const TensorType& type) const {
    const Wire& wire = state_.wires.grad;
    const std::size_t all = state_.axes.size();
    Value result = gradient;
    if (state_.grad < state_.optimizer) {
      result = collective(
          ReduceSlicesAttrs{.axes = axes_between(state_, state_.grad, state_.optimizer),
                            .slice = slice_elements(state_, type, state_.optimizer),
                            .wire = wire_between(state_, wire, state_.grad, state_.optimizer),
                            .block = wire.block},
          result);
    }
    if (state_.optimizer < all) {
      result =
          collective(AllReduceSlicesAttrs{.axes = axes_between(state_, state_.optimizer, all),
                                          .wire = wire_between(state_, wire, state_.optimizer, all),
                                          .block = wire.block},
                     result);
    }
    return result;
  }

  void run(const std::vector<ValueId>& parameters,
           const std::vector<Value>& gradients,
           const std::vector<AxisSizes>& cuts,
           const Value& loss) const {
    std::vector<Value> operands = sums_of_squares(gradients, cuts);
    const ClipScaleAttrs clip{.clip = options_.clip,
                              .num_sums = static_cast<std::int64_t>(operands.size())};
    operands.insert(operands.end(), {loss, apply_});
    const auto clipped = builder_.emit(make_op(clip), operands);
    builder_.output(step_names::kLoss, loss);
    builder_.output(step_names::kGradNorm, clipped[0]);
    builder_.output(step_names::kApplied, clipped[2]);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      step(builder_.handle(parameters[i]), gradients[i], clipped[1], clipped[2]);
    }
  }

 private:
  // One sum for the gradients of each cut, over the ranks that hold different parts of them.
  std::vector<Value> sums_of_squares(const std::vector<Value>& gradients,
                                     const std::vector<AxisSizes>& cuts) const {
    std::map<std::string, std::pair<AxisSizes, std::vector<Value>>> by_text;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      AxisSizes axes = cuts[i];
      const AxisSizes slices = first_axes(state_, state_.optimizer);
      axes.insert(axes.end(), slices.begin(), slices.end());
      auto& alike = by_text[to_string(axes)];
      alike.first = std::move(axes);
      alike.second.push_back(gradients[i]);
    }
    std::vector<Value> sums;
    for (const auto& [text, alike] : by_text) {
      const auto& [axes, values] = alike;
      const Value sum = sum_squares(values);
      sums.push_back(axes.empty() ? sum : collective(AllReduceAttrs{.axes = axes}, sum));
    }
    return sums;
  }

  template <class Attrs>
  Value collective(Attrs attrs, const Value& operand) const {
    return builder_.emit(make_op(std::move(attrs)), {operand})[0];
  }

  // One parameter's adamw, on its slice.
  void step(const Value& parameter,
            const Value& gradient,
            const Value& scale,
            const Value& applied) const {
    const std::string name = builder_.graph()[parameter.id].name;
    // Where the parameter is gathered, its f32 master takes its place in adamw.
    const bool gathers = state_.param < state_.optimizer;
    const bool rounds = !gathers && parameter.type().dtype != DType::kF32;
    const auto state = [&](const char* role, DType dtype) {
      return builder_.state(
          ValueKind::kOptimizer, format("{}.{}", role, name), with_dtype(gradient.type(), dtype));
    };
    std::vector<Value> states = {gathers ? state("master", DType::kF32) : parameter,
                                 state("moment1", options_.moments),
                                 state("moment2", options_.moments)};
    if (rounds) {
      states.push_back(state("master", DType::kF32));
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
      content =
          gathered(slice, {state_.wires.update, state_.param, state_.optimizer}, parameter.type());
      builder_.update(parameter, content);
    }
    if (const ValueId copy = builder_.graph().find_source(secondary_name(name)); copy.valid()) {
      const Value secondary = builder_.handle(copy);
      builder_.update(
          secondary,
          gathered(
              content, {state_.wires.param, state_.secondary, state_.param}, secondary.type()));
    }
  }

  // From slices over the first `to` axes to those over the first `from`.
  struct Gather {
    const Wire& wire;
    std::size_t from;
    std::size_t to;
  };

  Value gathered(const Value& slice, const Gather& hop, const TensorType& type) const {
    return collective(GatherSlicesAttrs{.axes = axes_between(state_, hop.from, hop.to),
                                        .type = type,
                                        .wire = wire_between(state_, hop.wire, hop.from, hop.to),
                                        .block = hop.wire.block},
                      slice);
  }

  GraphBuilder& builder_;
  const UpdateOptions& options_;
  const StateAxes& state_;
  Value learning_rate_;
  Value update_number_;
  Value apply_;
};

}  // namespace

Graph append_update(Graph graph, const UpdateOptions& options) {
  const std::map<std::string, TensorType> gradient_types = types_of_gradients(graph);
  if (options.state.grad > 0) {
    graph = reduce_gradients(graph, options.state);
  }
  if (options.num_microbatches > 1) {
    graph = accumulate(graph);
  }
  std::map<std::string, ValueId> made;  // output name -> value
  std::vector<Output> kept;
  for (const Output& output : graph.outputs) {
    made[output.name] = output.value;
    if (output.updates) {
      kept.push_back(output);
    }
  }
  graph.outputs = std::move(kept);
  GraphBuilder builder(std::move(graph));
  builder.set_phase(Phase::kUpdate);

  const Update update(builder, options);
  const std::vector<ValueId> parameters = builder.graph().trained_parameters();
  std::vector<Value> gradients;
  std::vector<AxisSizes> cuts;
  for (const ValueId parameter : parameters) {
    const std::string name = gradient_name(builder.graph()[parameter].name);
    const auto found = made.find(name);
    TESSERA_CHECK(found != made.end(), "no gradient of {}", builder.graph()[parameter].name);
    gradients.push_back(update.reduced(builder.handle(found->second), gradient_types.at(name)));
    cuts.push_back(axes_of(gradient_types.at(name), options.dims));
  }
  update.run(parameters,
             gradients,
             cuts,
             sum_over_ranks(builder, options.state, builder.handle(made.at("loss"))));
  return builder.take();
}

Graph sum_outputs(Graph graph, const StateAxes& state) {
  const std::vector<Output> outputs = std::exchange(graph.outputs, {});
  GraphBuilder builder(std::move(graph));
  for (const Output& output : outputs) {
    builder.output(output.name, sum_over_ranks(builder, state, builder.handle(output.value)));
  }
  return builder.take();
}

}  // namespace tessera
