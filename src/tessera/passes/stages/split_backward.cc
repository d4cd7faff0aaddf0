#include "tessera/passes/stages/split_backward.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"

namespace tessera {
namespace {

// The phase and the chunk of works that touch some memory.
using Touches = std::set<std::pair<Phase, std::int32_t>>;

// Whether two of them come in an order that differs from schedule to schedule.
bool has_no_order(const Touches& touches) {
  return std::ranges::any_of(touches, [&](const auto& weight) {
    return weight.first == Phase::kWeightGradient &&
           std::ranges::any_of(touches, [&](const auto& other) {
             const bool is_weight = other.first == Phase::kWeightGradient;
             return (is_weight && other.second != weight.second) ||
                    (other.first == Phase::kBackward && other.second < weight.second);
           });
  });
}

class BackwardSplit {
 public:
  explicit BackwardSplit(const Graph& graph)
      : graph_(graph), users_(users(graph)), phases_(find_phases()), edit_(graph) {}

  Graph run() {
    find_copies();
    const auto update = std::ranges::find(graph_.nodes, Phase::kUpdate, &Node::phase);
    const NodeId end = NodeId::of(static_cast<std::size_t>(update - graph_.nodes.begin()));
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const NodeId id = NodeId::of(i);
      Node node = graph_.nodes[i];
      node.phase = phases_[i];
      const bool is_changed = redirect(node) || node.phase != graph_.nodes[i].phase;
      const bool is_weight = node.phase == Phase::kWeightGradient;
      if (is_changed || is_weight) {
        edit_.remove(id);
        edit_.insert(is_weight ? end : id, std::move(node));
      }
      insert_copies(id);
    }
    return edit_.apply();
  }

 private:
  // Whether what it makes takes no more memory than what the step makes for it: a gather's whole,
  // or what is gathered of a state, would be kept from one work to the other.
  bool takes_no_more(const Node& node) const {
    std::int64_t bytes = 0;
    for (const ValueId operand : node.operands) {
      bytes += graph_[operand].producer.valid() ? graph_[operand].type.num_bytes() : 0;
    }
    for (const ValueId result : node.results) {
      bytes -= graph_[result].type.num_bytes();
    }
    return bytes >= 0;
  }

  // Whether it reads what a node makes that is one of `nodes`.
  bool reads_any(const Node& node, const std::vector<bool>& nodes) const {
    return std::ranges::any_of(node.operands, [&](ValueId operand) {
      const NodeId producer = graph_[operand].producer;
      return producer.valid() && nodes[producer.at()];
    });
  }

  // By node, whether it adds to a sum over microbatches.
  std::vector<bool> find_sums() const {
    std::vector<bool> sums(graph_.nodes.size(), false);
    for (const Output& output : graph_.outputs) {
      if (output.updates && graph_[output.value].producer.valid()) {
        sums[graph_[output.value].producer.at()] = true;
      }
    }
    return sums;
  }

  // Of every node, as the backward's two works need it.
  std::vector<Phase> find_phases() const {
    const std::vector<bool> adds = find_sums();
    std::vector<Phase> phases;
    std::vector<bool> follows(graph_.nodes.size(), false);  // from a node of backward
    std::vector<bool> is_late(graph_.nodes.size(), false);  // made with weight gradients alone
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      follows[i] = node.phase == Phase::kBackward || reads_any(node, follows);
      is_late[i] = reads_any(node, is_late);
      bool is_early = false;
      if (node.phase == Phase::kWeightGradient && !is_view(node)) {
        is_early = !adds[i] && !follows[i] && !is_late[i] && takes_no_more(node);
        is_late[i] = !is_early;
      }
      phases.push_back(is_early ? Phase::kBackward : node.phase);
    }
    for (std::size_t i = graph_.nodes.size(); i-- > 0;) {
      const Node& node = graph_.nodes[i];
      const auto is_needed_by = [&](NodeId reader) {
        const Phase phase = phases[reader.at()];
        return phase == Phase::kBackward ||
               (phase == Phase::kWeightGradient && graph_.nodes[reader.at()].chunk != node.chunk);
      };
      if (phases[i] == Phase::kWeightGradient &&
          std::ranges::any_of(node.results, [&](ValueId result) {
            return std::ranges::any_of(users_[result.at()], is_needed_by);
          })) {
        phases[i] = Phase::kBackward;
      }
    }
    return phases;
  }

  // By value, the first one of those that lie in one memory as views of each other.
  std::vector<ValueId> find_memory() const {
    std::vector<ValueId> memory;
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      memory.push_back(ValueId::of(i));
    }
    const auto first_of = [&](ValueId value) {
      while (memory[value.at()] != value) {
        memory[value.at()] = memory[memory[value.at()].at()];
        value = memory[value.at()];
      }
      return value;
    };
    for (const Node& node : graph_.nodes) {
      if (!is_view(node)) {
        continue;
      }
      for (const ValueId operand : node.operands) {
        const auto [first, second] = std::minmax({first_of(operand), first_of(node.results[0])});
        memory[second.at()] = first;
      }
    }
    for (ValueId& value : memory) {
      value = first_of(value);
    }
    return memory;
  }

  // By memory, who works on it.
  std::map<ValueId, Touches> find_touches(const std::vector<ValueId>& memory) const {
    std::map<ValueId, Touches> touches;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.phase == Phase::kUpdate || is_view(node)) {
        continue;
      }
      for (const auto* values : {&node.operands, &node.results}) {
        for (const ValueId value : *values) {
          if (graph_[value].producer.valid()) {
            touches[memory[value.at()]].insert({phases_[i], node.chunk});
          }
        }
      }
    }
    return touches;
  }

  // Which values are copied, for which chunks.
  void find_copies() {
    const std::vector<ValueId> memory = find_memory();
    std::map<ValueId, Touches> touches = find_touches(memory);
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      const ValueId value = ValueId::of(i);
      const NodeId producer = graph_[value].producer;
      if (!producer.valid() || !has_no_order(touches[memory[i]])) {
        continue;
      }
      for (const NodeId reader : users_[i]) {
        const Node& node = graph_.nodes[reader.at()];
        if (node.chunk != graph_.nodes[producer.at()].chunk && node.phase != Phase::kUpdate) {
          copies_.try_emplace({value, node.chunk}, edit_.fresh());
        }
      }
    }
  }

  // Whether the node reads copies.
  bool redirect(Node& node) const {
    bool any = false;
    for (ValueId& operand : node.operands) {
      if (const auto copy = copies_.find({operand, node.chunk}); copy != copies_.end()) {
        operand = copy->second;
        any = true;
      }
    }
    return any;
  }

  // Of what node `id` makes, right after it.
  void insert_copies(NodeId id) {
    const Node& maker = graph_.nodes[id.at()];
    for (const ValueId result : maker.results) {
      for (auto copy = copies_.lower_bound({result, 0});
           copy != copies_.end() && copy->first.first == result;
           ++copy) {
        edit_.insert(NodeId::of(id.at() + 1),
                     {.op = make_op(CastAttrs{.dtype = graph_[result].type.dtype}),
                      .operands = {result},
                      .results = {copy->second},
                      .phase = phases_[id.at()],
                      .layer = maker.layer,
                      .chunk = maker.chunk});
      }
    }
  }

  const Graph& graph_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<Phase> phases_;  // by node
  GraphEdit edit_;
  std::map<std::pair<ValueId, std::int32_t>, ValueId> copies_;  // by value and chunk
};

}  // namespace

Graph split_backward(const Graph& graph) {
  return BackwardSplit(graph).run();
}

}  // namespace tessera
