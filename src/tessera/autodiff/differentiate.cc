#include "tessera/autodiff/differentiate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ir/grad_builder.h"
#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

// A gradient that one use of a value sends back.
struct Contribution {
  ValueId value;
  std::int32_t layer;
  std::int32_t chunk;
};

class Differentiator {
 public:
  Differentiator(Graph graph, ValueId loss)
      : builder_(std::move(graph)),
        num_forward_(builder_.graph().nodes.size()),
        loss_(loss),
        depends_(parameters_reach()),
        contributions_(builder_.graph().values.size()) {}

  Graph run(GradientUses uses) {
    find_losses();
    for (std::size_t i = num_forward_; i-- > 0;) {
      visit(NodeId::of(i));
    }
    for (const ValueId parameter : builder_.graph().trained_parameters()) {
      const std::string name = builder_.graph()[parameter].name;
      const auto& arrived = contributions_[parameter.at()];
      TESSERA_REQUIRE(!arrived.empty(),
                      ErrorCode::kInvalidArgument,
                      "parameter {} does not reach the loss",
                      name);
      if (uses == GradientUses::kSummed || arrived.size() == 1) {
        builder_.gradient(gradient_name(name), name, *total(parameter, Phase::kWeightGradient));
      } else {
        gradients_apart(name, arrived);
      }
    }
    return builder_.take();
  }

 private:
  // One output for each use of each chunk, in the order of use; arrivals are in reverse. The uses
  // of a chunk have the numbers of those of any other.
  void gradients_apart(const std::string& name, const std::vector<Contribution>& arrived) {
    std::map<std::int32_t, std::int32_t> next;  // by chunk
    for (const Contribution& contribution : arrived) {
      next[contribution.chunk] = 0;
    }
    const bool is_sliced = next.size() > 1;
    const bool has_uses = arrived.size() > next.size();
    for (std::size_t i = arrived.size(); i-- > 0;) {
      const std::int32_t use = next.at(arrived[i].chunk)++;
      builder_.gradient((has_uses ? gradient_name(name, use) : gradient_name(name)) +
                            (is_sliced ? format(".slice{}", arrived[i].chunk) : ""),
                        name,
                        builder_.handle(arrived[i].value),
                        use);
    }
  }

  // The gradient of a sum of losses is that of each.
  void find_losses() {
    losses_.insert(loss_);
    for (std::size_t i = num_forward_; i-- > 0;) {
      const Node& node = builder_.graph().nodes[i];
      if (node.op->get_if<AddAttrs>() != nullptr && losses_.contains(node.results[0])) {
        losses_.insert(node.operands.begin(), node.operands.end());
      }
    }
  }

  // For every value, whether some trained parameter has an influence on it.
  std::vector<bool> parameters_reach() const {
    const Graph& graph = builder_.graph();
    std::vector<bool> depends(graph.values.size(), false);
    for (const ValueId parameter : graph.trained_parameters()) {
      depends[parameter.at()] = true;
    }
    for (const Node& node : graph.nodes) {
      const bool any = std::any_of(
          node.operands.begin(), node.operands.end(), [&](ValueId id) { return depends[id.at()]; });
      for (const ValueId result : node.results) {
        depends[result.at()] = any;
      }
    }
    return depends;
  }

  // The sum of what arrived for `value`, in the order of use; arrivals are in reverse.
  std::optional<Value> total(ValueId value, Phase phase) {
    auto& arrived = contributions_[value.at()];
    if (arrived.empty()) {
      return std::nullopt;
    }
    builder_.set_phase(phase);
    builder_.set_layer(phase == Phase::kWeightGradient ? -1 : arrived.back().layer);
    Value sum = builder_.handle(arrived.back().value);
    for (std::size_t i = arrived.size() - 1; i-- > 0;) {
      sum = add(sum, builder_.handle(arrived[i].value));
    }
    return sum;
  }

  void visit(NodeId id) {
    // A copy: the rules append nodes, which moves the list.
    const Node node = builder_.graph().nodes[id.at()];
    if (node.op->get_if<AddAttrs>() != nullptr && losses_.contains(node.results[0])) {
      return;
    }
    builder_.set_chunk(node.chunk);
    bool reached = false;
    std::vector<std::optional<Value>> gradients;
    for (const ValueId result : node.results) {
      gradients.push_back(total(result, Phase::kBackward));
      reached = reached || gradients.back().has_value() || losses_.contains(result);
    }
    std::vector<bool> wanted;
    for (const ValueId operand : node.operands) {
      wanted.push_back(depends_[operand.at()]);
    }
    if (!reached || std::none_of(wanted.begin(), wanted.end(), [](bool w) { return w; })) {
      return;
    }
    builder_.set_layer(node.layer);
    GradBuilder grad(builder_, node, wanted, std::move(gradients));
    with_context([&] { return format("gradient of node {}: {}", id.index, to_string(*node.op)); },
                 [&] { backward(*node.op, grad); });
    for (std::size_t i = node.operands.size(); i-- > 0;) {
      const auto& gradient = grad.operand_gradients()[i];
      if (!wanted[i]) {
        continue;
      }
      TESSERA_REQUIRE(gradient.has_value(),
                      ErrorCode::kUnsupported,
                      "node {}: {} has no gradient for its operand {}, on which a parameter has an "
                      "influence",
                      id.index,
                      to_string(*node.op),
                      i);
      contributions_[node.operands[i].at()].push_back(
          {.value = gradient->id, .layer = node.layer, .chunk = node.chunk});
    }
  }

  GraphBuilder builder_;
  std::size_t num_forward_;
  ValueId loss_;
  std::set<ValueId> losses_;  // that it is the sum of, itself included
  std::vector<bool> depends_;
  std::vector<std::vector<Contribution>> contributions_;
};

}  // namespace

std::string gradient_name(std::string_view parameter) {
  return format("gradient.{}", parameter);
}

std::string gradient_name(std::string_view parameter, std::int32_t use) {
  return format("{}.use{}", gradient_name(parameter), use);
}

Graph differentiate(Graph graph, GradientUses uses) {
  const auto output = std::ranges::find(graph.outputs, OutputKind::kLoss, &Output::kind);
  TESSERA_REQUIRE(output != graph.outputs.end(),
                  ErrorCode::kInvalidArgument,
                  "graph {} has no output of kind loss to differentiate",
                  graph.name);
  const ValueId loss_value = output->value;
  return Differentiator(std::move(graph), loss_value).run(uses);
}

}  // namespace tessera
