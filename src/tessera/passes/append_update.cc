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

}  // namespace

Graph append_update(Graph graph, const UpdateOptions& options) {
  if (options.num_microbatches > 1) {
    graph = accumulate(graph);
  }
  std::map<std::string, ValueId> made;  // output name -> value
  std::vector<Output> kept;
  for (const Output& output : graph.outputs) {
    made[output.name] = output.value;
    if (output.updates || output.name == "loss") {
      kept.push_back(output);
    }
  }
  graph.outputs = std::move(kept);
  GraphBuilder builder(std::move(graph));
  builder.set_phase(Phase::kUpdate);

  const std::vector<ValueId> parameters = builder.graph().sources(ValueKind::kParameter);
  std::vector<Value> gradients;
  for (const ValueId parameter : parameters) {
    const auto found = made.find(gradient_name(builder.graph()[parameter].name));
    TESSERA_CHECK(found != made.end(), "no gradient of {}", builder.graph()[parameter].name);
    gradients.push_back(builder.handle(found->second));
  }
  const Value learning_rate = builder.scalar("learning_rate");
  const Value update_number = builder.scalar("update_number");
  const Value apply = builder.scalar("apply");
  const Value loss = builder.handle(made.at("loss"));
  const auto clipped = builder.emit(make_op(ClipScaleAttrs{.clip = options.clip}),
                                    {sum_squares(gradients), loss, apply});
  if (options.num_microbatches > 1) {
    builder.output("loss", loss);
  }
  builder.output("grad_norm", clipped[0]);
  builder.output("applied", clipped[2]);

  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Value parameter = builder.handle(parameters[i]);
    const std::string name = builder.graph()[parameters[i]].name;
    const TensorType state_type = f32_like(parameter.type());
    const bool master = parameter.type().dtype != DType::kF32;
    std::vector<Value> states = {parameter};
    for (const char* role : {"moment1", "moment2", "master"}) {
      if (master || std::string(role) != "master") {
        states.push_back(
            builder.state(ValueKind::kOptimizer, format("{}.{}", role, name), state_type));
      }
    }
    std::vector<Value> operands = states;
    operands.insert(operands.begin() + 1, gradients[i]);
    operands.insert(operands.end(), {learning_rate, update_number, clipped[1], clipped[2]});
    const auto results = builder.emit(make_op(AdamwAttrs{.beta1 = options.beta1,
                                                         .beta2 = options.beta2,
                                                         .eps = options.eps,
                                                         .weight_decay = options.weight_decay,
                                                         .master = master}),
                                      operands);
    for (std::size_t s = 0; s < states.size(); ++s) {
      builder.update(states[s], results[s]);
    }
  }
  return builder.take();
}

}  // namespace tessera
