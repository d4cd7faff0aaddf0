#include "tessera/plan/model_costs.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/autodiff/differentiate.h"
#include "tessera/ir/graph.h"
#include "tessera/mesh/axes.h"
#include "tessera/ops/op.h"
#include "tessera/passes/graph/fuse.h"
#include "tessera/passes/memory/recompute_layers.h"
#include "tessera/passes/stages/assign_stages.h"
#include "tessera/plan/graphs.h"

namespace tessera {
namespace {

// FLOP in the time that a byte takes, where a data sheet says neither: those of a core with its
// share of a server's memory.
constexpr double kUsualFlopPerByte = 10.0;

double peak_flops(const DeviceSpec& device, DType dtype) {
  return dtype == DType::kBF16 ? device.peak_flops.bf16 : device.peak_flops.f32;
}

// Ticks of an op: seconds, or the time of a FLOP.
class Speed {
 public:
  // Of each of `ranks` that share the work.
  Speed(const DeviceSpec& device, DType dtype, std::int64_t ranks) {
    if (has_speed(device, dtype)) {
      per_flop_ = 1.0 / peak_flops(device, dtype);
      per_byte_ = 1.0 / device.memory_bandwidth;
    }
    per_flop_ /= static_cast<double>(ranks);
    per_byte_ /= static_cast<double>(ranks);
  }

  double ticks(const Cost& cost) const {
    return std::max(per_flop_ * cost.flop, per_byte_ * (cost.bytes_read + cost.bytes_written));
  }

 private:
  double per_flop_ = 1.0;
  double per_byte_ = kUsualFlopPerByte;
};

// Data, context and tensor ranks.
std::int64_t ranks_of_stage(const Plan& plan) {
  const Mesh& mesh = plan.layout.mesh;
  return mesh.num_ranks() / num_ranks(pipeline_axes(mesh));
}

double& part_of(ActionCosts& costs, Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return costs.forward;
    case Phase::kWeightGradient:
      return costs.weight_gradient;
    case Phase::kBackward:
    case Phase::kStart:
    case Phase::kUpdate:
      break;
  }
  return costs.input_gradient;
}

// Without the names of ops, which are those of compiled layers.
RecomputeRules without_names(RecomputeRules rules) {
  for (RecomputeRule& rule : rules) {
    rule.keep.clear();
    rule.again.clear();
  }
  return rules;
}

}  // namespace

bool has_speed(const DeviceSpec& device, DType dtype) {
  return peak_flops(device, dtype) > 0 && device.memory_bandwidth > 0;
}

double token_growth(const Plan& plan) {
  const auto flop_per_token = [&](std::int64_t tokens) {
    const Graph graph = differentiate(training_graph(plan.model, 1, tokens, plan.dtype));
    double flop = 0.0;
    for (const Node& node : graph.nodes) {
      flop += node.layer >= 0 ? cost(*node.op, graph.types(node.operands)).flop : 0.0;
    }
    return flop / static_cast<double>(tokens);
  };
  const std::int64_t all = plan.sequence_length;
  const std::int64_t some = all / 2;
  if (some == 0) {
    return 0.0;
  }
  // Per token, first + (last - first) / 2, where the last of all needs what grows with their
  // number.
  const double of_all = flop_per_token(all);
  const double slope = (of_all - flop_per_token(some)) / static_cast<double>(all - some);
  const double first = of_all - slope * static_cast<double>(all);
  return first > 0.0 ? std::max(0.0, 2.0 * slope * static_cast<double>(all) / first) : 0.0;
}

std::int64_t boundary_bytes(const Plan& plan) {
  const Graph graph = step_graph(plan);
  const std::vector<std::vector<NodeId>> readers = users(graph);
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(plan.model.num_layers), 0);
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const NodeId producer = graph.values[i].producer;
    if (!producer.valid() || graph.nodes[producer.at()].layer < 0) {
      continue;
    }
    std::int32_t last = graph.nodes[producer.at()].layer;
    for (const NodeId reader : readers[i]) {
      last = std::max(last, graph.nodes[reader.at()].layer);
    }
    for (std::int32_t layer = graph.nodes[producer.at()].layer; layer < last; ++layer) {
      bytes[static_cast<std::size_t>(layer)] += graph.values[i].type.num_bytes();
    }
  }
  const std::int64_t ranks = plan.layout.sequence_parallel
                                 ? ranks_of_stage(plan)
                                 : plan.layout.num_data() * plan.layout.num_context();
  return bytes.empty() ? 0 : *std::ranges::max_element(bytes) / ranks;
}

ModelCosts model_costs(const Plan& plan, const DeviceSpec& device) {
  // As it runs: a fused loss makes its gradients in forward.
  Graph graph =
      recompute_layers(differentiate(step_graph(plan)), without_names(plan.passes.recompute));
  if (plan.passes.fuse) {
    graph = fuse(graph);
  }
  const Speed speed(device, plan.dtype, ranks_of_stage(plan));
  // The embedding, the layers, the head.
  const std::array<std::int64_t, 3> parts = {0, plan.model.num_layers, 0};
  const std::vector<std::int32_t> part_of_node = assign_stages(graph, parts);
  constexpr ActionCosts kNothing = {0.0, 0.0, 0.0};
  ModelCosts costs = {
      .layers = std::vector(static_cast<std::size_t>(plan.model.num_layers), kNothing),
      .embedding = kNothing,
      .head = kNothing};
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const bool is_layer = node.layer >= 0;
    if (node.results.empty() || (!is_layer && part_of_node[i] == kEveryStage)) {
      continue;
    }
    TensorTypes operands;
    for (const ValueId operand : node.operands) {
      operands.push_back(graph[operand].type);
    }
    ActionCosts& part = is_layer               ? costs.layers[static_cast<std::size_t>(node.layer)]
                        : part_of_node[i] == 0 ? costs.embedding
                                               : costs.head;
    const double ticks = speed.ticks(cost(*node.op, operands));
    part_of(part, node.phase) += ticks;
  }
  return costs;
}

}  // namespace tessera
