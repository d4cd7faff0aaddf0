#include "tessera/passes/memory/recompute_layers.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/op.h"
#include "tessera/ops/work.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/passes/graph/unfuse_attention.h"

namespace tessera {
namespace {

// A layer, and the slice of the tokens.
using SlicedLayer = std::pair<std::int32_t, std::int32_t>;

SlicedLayer sliced_layer_of(const Node& node) {
  return {node.layer, node.chunk};
}

// By value, whether it is kept for what another chunk does: read there, or in one memory with what
// was made there.
std::vector<bool> find_kept(const Graph& graph) {
  std::vector<bool> kept(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (const ValueId operand : node.operands) {
      const NodeId producer = graph[operand].producer;
      if (producer.valid() && graph.nodes[producer.at()].chunk != node.chunk) {
        kept[operand.at()] = true;
        for (const ValueId result : node.results) {
          kept[result.at()] = kept[result.at()] || is_view(node);
        }
      }
    }
  }
  return kept;
}

bool has_product(const Graph& graph, const Node& node) {
  const Works works = work(*node.op, graph.types(node.operands));
  return std::ranges::find(works, WorkKind::kProduct, &Work::kind) != works.end();
}

// Also of attention that is several ops.
bool is_attention(const Graph& graph, const Node& node) {
  const Works works = work(*node.op, graph.types(node.operands));
  return is_of_unfused_attention(graph, node) ||
         std::ranges::find(works, WorkKind::kAttention, &Work::kind) != works.end();
}

bool is_sum_over_ranks(const Graph& graph, const Node& node) {
  const Collectives uses = collectives(*node.op, graph.types(node.operands));
  return std::ranges::any_of(uses, [](const CollectiveUse& use) {
    return use.kind == CollectiveKind::kReduceScatter || use.kind == CollectiveKind::kAllReduce;
  });
}

const RecomputeRule* find_rule(const RecomputeRules& rules, std::int64_t layer) {
  const auto found =
      std::ranges::find_if(rules, [&](const RecomputeRule& rule) { return rule.contains(layer); });
  return found != rules.end() ? &*found : nullptr;
}

// Whether ops of a rule name one of that name.
bool names_op(const std::vector<std::string>& ops, const std::string& name) {
  return std::ranges::any_of(ops, [&](const std::string& op) {
    return !name.empty() && (op == name || op == name.substr(0, name.rfind('.')));
  });
}

// By value, whether backward reads it or a view of it.
std::vector<bool> find_read_by_backward(const Graph& graph) {
  std::vector<bool> read(graph.values.size(), false);
  for (const Node& node : graph.nodes | std::views::reverse) {
    const bool is_read_view =
        is_view(node) &&
        std::ranges::any_of(node.results, [&](ValueId result) { return read[result.at()]; });
    if (is_of_backward(node) || is_read_view) {
      for (const ValueId operand : node.operands) {
        read[operand.at()] = true;
      }
    }
  }
  return read;
}

// Says of nodes of forward, one after the other, whether their results are kept though their own
// layer's backward alone reads them.
class KeptByRule {
 public:
  KeptByRule(const Graph& graph, const RecomputeRules& rules)
      : graph_(graph),
        rules_(rules),
        names_(recompute_names(graph)),
        read_(find_read_by_backward(graph)),
        dropped_(graph.values.size(), false) {}

  bool keeps(NodeId id) {
    const Node& node = graph_.nodes[id.at()];
    const RecomputeRule* rule = find_rule(rules_, node.layer);
    if (rule == nullptr) {
      return false;  // its layer is not recomputed
    }
    const bool as_a_rule = keeps_by_kind(node, rule->kept);
    if (is_named_alone(id, rule->keep)) {
      return true;
    }
    return !is_named(id, rule->again) && (as_a_rule || is_named(id, rule->keep));
  }

 private:
  bool keeps_by_kind(const Node& node, RecomputeKept kept) {
    switch (kept) {
      case RecomputeKept::kAll:
        return true;
      case RecomputeKept::kInputs:
        return false;
      case RecomputeKept::kAllButAttention:
        // What attention alone gathers backward gathers again.
        return !is_attention(graph_, node) && node.op->get_if<AllGatherAttrs>() == nullptr &&
               !is_passing(graph_, node);
      case RecomputeKept::kEverySecondProduct:
        return is_attention(graph_, node) || is_sum_over_ranks(graph_, node) ||
               (has_product(graph_, node) && products_[sliced_layer_of(node)]++ % 2 == 0);
      case RecomputeKept::kAllButCheap:
        return !is_cheap(node);
    }
    return false;
  }

  // Whether it is made without much arithmetic from what is there in backward anyway.
  bool is_cheap(const Node& node) {
    const bool is_costly = has_product(graph_, node) || is_attention(graph_, node) ||
                           is_random(node) ||
                           !collectives(*node.op, graph_.types(node.operands)).empty();
    if (is_costly || !std::ranges::all_of(
                         node.operands, [&](ValueId operand) { return is_there(node, operand); })) {
      return false;
    }
    for (const ValueId result : node.results) {
      dropped_[result.at()] = true;
    }
    return true;
  }

  bool is_there(const Node& reader, ValueId value) const {
    const NodeId producer = graph_[value].producer;
    if (!producer.valid() ||
        sliced_layer_of(graph_.nodes[producer.at()]) != sliced_layer_of(reader)) {
      return true;
    }
    return read_[value.at()] || dropped_[value.at()];
  }

  // By its own name, which says more than one for all of a layer.
  bool is_named_alone(NodeId id, const std::vector<std::string>& ops) const {
    return std::ranges::find(ops, names_[id.at()]) != ops.end();
  }

  bool is_named(NodeId id, const std::vector<std::string>& ops) const {
    return names_op(ops, names_[id.at()]);
  }

  const Graph& graph_;
  const RecomputeRules& rules_;
  std::vector<std::string> names_;
  std::vector<bool> read_;
  std::vector<bool> dropped_;  // what is cheap
  std::map<SlicedLayer, int> products_;
};

void require_known(std::string_view key,
                   const std::vector<std::string>& ops,
                   const std::set<std::string>& known) {
  for (const std::string& op : ops) {
    const bool is_known = std::ranges::any_of(
        known, [&](const std::string& name) { return name == op || name.starts_with(op + "."); });
    std::string list;
    for (const std::string& name : known) {
      list += (list.empty() ? "" : ", ") + name;
    }
    TESSERA_REQUIRE(is_known,
                    ErrorCode::kInvalidConfig,
                    "{} names \"{}\", an op that no layer has in its forward: expected one of {}, "
                    "or a name without its number for all of them",
                    key,
                    op,
                    list);
  }
}

// Each op that a rule names is of its layers, where the graph has any of these.
void require_ops(const Graph& graph, const RecomputeRule& rule) {
  if (rule.keep.empty() && rule.again.empty() && rule.store.empty()) {
    return;
  }
  const std::vector<std::string> names = recompute_names(graph);
  std::set<std::string> known;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!names[i].empty() && rule.contains(graph.nodes[i].layer) && !is_view(graph.nodes[i])) {
      known.insert(names[i]);
    }
  }
  if (!known.empty()) {
    require_known("memory.keep", rule.keep, known);
    require_known("memory.recompute_ops", rule.again, known);
    require_known("what is stored", rule.store, known);
    for (const std::string& op : rule.keep) {
      TESSERA_REQUIRE(std::ranges::find(rule.again, op) == rule.again.end(),
                      ErrorCode::kInvalidConfig,
                      "memory.keep and memory.recompute_ops both name \"{}\": expected one of them",
                      op);
    }
  }
}

// Adds what is kept though its own layer's backward alone reads it.
void add_kept(const Graph& graph, const RecomputeRules& rules, std::vector<bool>& kept) {
  KeptByRule by_rule(graph, rules);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.layer >= 0 && node.phase == Phase::kForward && by_rule.keeps(NodeId::of(i))) {
      for (const ValueId result : node.results) {
        kept[result.at()] = true;
      }
    }
  }
}

// The same graph, in which what rules store leaves.
Graph with_leaving(Graph graph, const RecomputeRules& rules) {
  if (std::ranges::all_of(rules, [](const RecomputeRule& rule) { return rule.store.empty(); })) {
    return graph;
  }
  const std::vector<std::string> names = recompute_names(graph);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const RecomputeRule* rule = find_rule(rules, node.layer);
    if (rule != nullptr && names_op(rule->store, names[i])) {
      for (const ValueId result : node.results) {
        graph[result].leaves = true;
      }
    }
  }
  return graph;
}

// What one layer's backward needs of its own forward.
class LayerRecompute {
 public:
  LayerRecompute(const Graph& graph,
                 GraphEdit& edit,
                 const std::vector<bool>& kept,
                 SlicedLayer layer)
      : graph_(graph), edit_(edit), kept_(kept), layer_(std::move(layer)) {}

  void run() {
    std::vector<NodeId> backward;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (sliced_layer_of(node) == layer_ && is_of_backward(node)) {
        backward.push_back(NodeId::of(i));
        need(node);
      }
    }
    const NodeId first = backward.empty() ? NodeId{} : backward.front();
    std::erase_if(backward, [&](NodeId id) { return takes_place_of_copy(id); });
    for (const NodeId id : backward) {
      redirect(id);
    }
    for (const NodeId source : needed_) {  // in node order
      insert_copy(first, graph_.nodes[source.at()]);
    }
  }

 private:
  bool is_own_forward(ValueId value) const {
    const ValueInfo& facts = graph_[value];
    if (facts.kind != ValueKind::kResult || kept_[value.at()]) {
      return false;
    }
    const Node& producer = graph_.nodes[facts.producer.at()];
    return sliced_layer_of(producer) == layer_ && producer.phase == Phase::kForward;
  }

  // Marks the forward nodes of the layer that `reader` needs for recomputation.
  void need(const Node& reader) {
    for (const ValueId operand : reader.operands) {
      if (is_own_forward(operand) && needed_.insert(graph_[operand].producer).second) {
        const Node& node = graph_.nodes[graph_[operand].producer.at()];
        for (const ValueId result : node.results) {
          copies_[result] = edit_.fresh();
        }
        need(node);
      }
    }
  }

  // Whether a backward node repeats a forward one that is recomputed, as collectives do whose
  // results are not kept, and views of them: they share the copy, which then makes the backward
  // node's results.
  bool takes_place_of_copy(NodeId id) {
    const Node& node = graph_.nodes[id.at()];
    std::vector<ValueId> operands = node.operands;
    for (ValueId& operand : operands) {
      const auto found = repeats_.find(operand);
      operand = found != repeats_.end() ? found->second : operand;
    }
    const auto same = std::ranges::find_if(needed_, [&](NodeId source) {
      const Node& other = graph_.nodes[source.at()];
      return other.operands == operands && equal(*other.op, *node.op);
    });
    if (same == needed_.end() || !shared_.insert(*same).second) {
      return false;
    }
    const std::vector<ValueId>& results = graph_.nodes[same->at()].results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      copies_[results[i]] = node.results[i];
      repeats_[node.results[i]] = results[i];
    }
    edit_.remove(id);
    return true;
  }

  void redirect(NodeId id) {
    const Node& node = graph_.nodes[id.at()];
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      if (const auto found = copies_.find(node.operands[i]); found != copies_.end()) {
        edit_.set_operand(id, i, found->second);
      }
    }
  }

  void insert_copy(NodeId position, const Node& source) {
    Node copy = source;
    copy.phase = Phase::kBackward;
    for (ValueId& operand : copy.operands) {
      const auto found = copies_.find(operand);
      operand = found != copies_.end() ? found->second : operand;
    }
    for (ValueId& result : copy.results) {
      result = copies_.at(result);
    }
    edit_.insert(position, std::move(copy));
  }

  const Graph& graph_;
  GraphEdit& edit_;
  const std::vector<bool>& kept_;
  SlicedLayer layer_;
  std::set<NodeId> needed_;
  std::set<NodeId> shared_;  // of these, the ones whose copy stands for a backward node
  std::map<ValueId, ValueId> copies_;
  std::map<ValueId, ValueId> repeats_;  // results of backward nodes that are gone: the forward ones
};

}  // namespace

bool is_random(const Node& node) {
  return node.op->get_if<DropoutAttrs>() != nullptr;
}

bool is_of_backward(const Node& node) {
  return node.phase == Phase::kBackward || node.phase == Phase::kWeightGradient;
}

std::string_view name(RecomputeKept kept) {
  switch (kept) {
    case RecomputeKept::kAll:
      return "all";
    case RecomputeKept::kInputs:
      return "inputs";
    case RecomputeKept::kAllButAttention:
      return "all_but_attention";
    case RecomputeKept::kEverySecondProduct:
      return "every_second_product";
    case RecomputeKept::kAllButCheap:
      return "all_but_cheap";
  }
  return "?";
}

RecomputeRules recompute_all(RecomputeKept kept) {
  return {{.kept = kept}};
}

bool is_passing(const Graph& graph, const Node& node) {
  const auto* part = node.op->get_if<AttentionPartAttrs>();
  const bool is_cut_input = node.op->get_if<LocalSliceAttrs>() != nullptr &&
                            graph[node.operands[0]].kind == ValueKind::kInput;
  return node.op->get_if<RingShiftAttrs>() != nullptr || is_cut_input ||
         (part != nullptr && part->step + 1 < part->steps);
}

std::vector<std::string> recompute_names(const Graph& graph) {
  std::vector<std::string> names(graph.nodes.size());
  std::map<std::pair<SlicedLayer, std::string>, int> numbers;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.layer >= 0 && node.phase == Phase::kForward && !is_passing(graph, node)) {
      const bool is_step = node.op->get_if<AttentionPartAttrs>() != nullptr;
      const std::string op = is_step ? "attention" : info(*node.op).name;
      names[i] = format("{}.{}", op, numbers[{sliced_layer_of(node), op}]++);
    }
  }
  return names;
}

Graph recompute_layers(const Graph& graph, const RecomputeRules& rules) {
  const Graph marked = with_leaving(graph, rules);
  std::set<SlicedLayer> layers;
  for (const Node& node : marked.nodes) {
    if (node.layer >= 0 && find_rule(rules, node.layer) != nullptr) {
      layers.insert(sliced_layer_of(node));
    }
  }
  for (const RecomputeRule& rule : rules) {
    require_ops(marked, rule);
  }
  std::vector<bool> kept = find_kept(marked);
  add_kept(marked, rules, kept);
  GraphEdit edit(marked);
  for (const SlicedLayer& layer : layers) {
    LayerRecompute(marked, edit, kept, layer).run();
  }
  return edit.apply();
}

}  // namespace tessera
