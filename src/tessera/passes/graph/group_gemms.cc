#include "tessera/passes/graph/group_gemms.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/ir/adapters.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"

namespace tessera {
namespace {

using Users = std::vector<std::vector<NodeId>>;

const MatmulAttrs* matmul_of(const Node& node) {
  return node.op->get_if<MatmulAttrs>();
}

// Forward products of one input with parameters of equal inner shape, all frozen or none, all with
// a bias or none, in node order. Adapters do not join what they adapt: then the gradient of every
// result would have to lie beside theirs, that of the residual stream too.
struct Group {
  std::vector<NodeId> members;
  ValueId input;
  std::vector<ValueId> weights;
  std::vector<ValueId> biases;  // one each, or none
  std::vector<ValueId> results;
};

bool same_but_first_dim(const TensorType& a, const TensorType& b) {
  return a.num_dims() == b.num_dims() && a.dtype == b.dtype &&
         std::equal(
             a.dims.begin() + 1, a.dims.end(), b.dims.begin() + 1, [](const Dim& x, const Dim& y) {
               return x.bound == y.bound;
             });
}

// The groups of two members or more, each without members whose weight is in use: it lies beside
// the other weights of its group, hence in one group and there once; or in several of the same
// weights, one of each slice.
std::vector<Group> with_weights_of_their_own(const Graph& graph, const std::vector<Group>& groups) {
  std::vector<Group> result;
  std::set<ValueId> in_use;
  std::map<std::vector<ValueId>, std::set<std::int32_t>> chunks;  // of weights that are together
  for (const Group& group : groups) {
    const std::int32_t chunk = graph.nodes[group.members[0].at()].chunk;
    if (const auto others = chunks.find(group.weights);
        others != chunks.end() && others->second.insert(chunk).second) {
      result.push_back(group);
      continue;
    }
    Group rest{.members = {}, .input = group.input, .weights = {}, .biases = {}, .results = {}};
    std::set<ValueId> weights;
    for (std::size_t i = 0; i < group.members.size(); ++i) {
      if (!in_use.contains(group.weights[i]) && weights.insert(group.weights[i]).second) {
        rest.members.push_back(group.members[i]);
        rest.weights.push_back(group.weights[i]);
        if (!group.biases.empty()) {
          rest.biases.push_back(group.biases[i]);
        }
        rest.results.push_back(group.results[i]);
      }
    }
    if (rest.members.size() >= 2) {
      in_use.merge(weights);
      chunks[rest.weights].insert(chunk);
      result.push_back(std::move(rest));
    }
  }
  return result;
}

// Whether activations go from rank to rank: the pass comes before the collectives of state.
bool is_cut(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return !collectives(*node.op, graph.types(node.operands)).empty();
  });
}

// Whether a norm or a collective reads `value`, or what may be written over it. They take heads for
// rows at one distance, or without gaps, which those of a part of a wider tensor are not.
bool needs_own_memory(const Graph& graph, const Users& readers, ValueId value) {
  return std::ranges::any_of(readers[value.at()], [&](NodeId reader) {
    const Node& node = graph.nodes[reader.at()];
    if (node.op->get_if<RmsNormAttrs>() != nullptr ||
        node.op->get_if<LayerNormAttrs>() != nullptr ||
        !collectives(*node.op, graph.types(node.operands)).empty()) {
      return true;
    }
    return std::ranges::any_of(info(*node.op).aliases, [&](const Alias& alias) {
      return node.operands[static_cast<std::size_t>(alias.operand)] == value &&
             needs_own_memory(graph, readers, node.results[static_cast<std::size_t>(alias.result)]);
    });
  });
}

std::vector<Group> find_groups(const Graph& graph, const Users& readers) {
  // Where layers are cut, what adapters make in between is gathered and folded, which takes memory
  // in one piece.
  const bool with_adapters = !is_cut(graph);
  std::vector<Group> groups;
  // By input, whether the weights are frozen, and whether there are biases.
  std::map<std::tuple<ValueId, bool, bool>, std::size_t> known;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const MatmulAttrs* attrs = matmul_of(node);
    if (attrs == nullptr || node.phase != Phase::kForward || !attrs->transpose_b ||
        attrs->transpose_a || attrs->contract != 1 ||
        graph[node.operands[1]].kind != ValueKind::kParameter ||
        (!with_adapters && is_adapter(graph[node.operands[1]].name)) ||
        (graph[node.operands[1]].type.num_dims() > 2 &&
         needs_own_memory(graph, readers, node.results[0]))) {
      continue;
    }
    const bool frozen = graph[node.operands[1]].frozen;
    const auto [found, is_new] =
        known.try_emplace({node.operands[0], frozen, has_bias(attrs->epilogue)}, groups.size());
    if (is_new) {
      groups.push_back(
          {.members = {}, .input = node.operands[0], .weights = {}, .biases = {}, .results = {}});
    }
    Group& group = groups[found->second];
    if (group.members.empty() ||
        same_but_first_dim(graph[group.weights[0]].type, graph[node.operands[1]].type)) {
      group.members.push_back(NodeId::of(i));
      group.weights.push_back(node.operands[1]);
      if (has_bias(attrs->epilogue)) {
        group.biases.push_back(node.operands[2]);
      }
      group.results.push_back(node.results[0]);
    }
  }
  return with_weights_of_their_own(graph, groups);
}

class GroupRewriter {
 public:
  GroupRewriter(const Graph& graph, GraphEdit& edit, const Users& users, const Group& group)
      : graph_(graph), edit_(edit), users_(users), group_(group) {
    for (const ValueId weight : group.weights) {
      name_ += (name_.empty() ? "" : "+") + graph[weight].type.dims[0].name;
    }
  }

  void run() {
    forward();
    std::vector<NodeId> input_gradients;
    std::vector<NodeId> weight_gradients;
    for (std::size_t i = 0; i < group_.members.size(); ++i) {
      find_gradients(group_.weights[i], input_gradients, weight_gradients);
    }
    if (input_gradients.size() == group_.members.size()) {
      input_gradient(input_gradients);
    }
    if (weight_gradients.size() == group_.members.size()) {
      weight_gradient(weight_gradients);
    }
  }

 private:
  // The backward product with `weight`, and the product with the input that has the weight's shape.
  // A weight with other uses in its chunk has other gradients, too: then they stay apart.
  void find_gradients(ValueId weight,
                      std::vector<NodeId>& input_gradients,
                      std::vector<NodeId>& weight_gradients) const {
    const auto& readers = users_[weight.at()];
    const std::int32_t chunk = graph_.nodes[group_.members[0].at()].chunk;
    if (std::count_if(readers.begin(), readers.end(), [&](NodeId reader) {
          const Node& node = graph_.nodes[reader.at()];
          return node.phase == Phase::kForward && node.chunk == chunk;
        }) != 1) {
      return;
    }
    std::optional<ValueId> arrived;
    for (const NodeId user : readers) {
      const Node& node = graph_.nodes[user.at()];
      if (matmul_of(node) != nullptr && node.phase == Phase::kBackward && node.chunk == chunk &&
          node.operands[1] == weight) {
        input_gradients.push_back(user);
        arrived = node.operands[0];
      }
    }
    if (!arrived) {
      return;
    }
    for (const NodeId user : users_[arrived->at()]) {
      const Node& node = graph_.nodes[user.at()];
      if (matmul_of(node) != nullptr && node.phase == Phase::kWeightGradient &&
          node.operands[0] == *arrived && same_content(graph_, node.operands[1], group_.input)) {
        weight_gradients.push_back(user);
      }
    }
  }

  Node make(OpRef op, std::vector<ValueId> operands, ValueId result, const Node& like) const {
    return {.op = std::move(op),
            .operands = std::move(operands),
            .results = {result},
            .phase = like.phase,
            .layer = like.layer,
            .chunk = like.chunk};
  }

  // One tensor made of `parts` along `dim`.
  ValueId concat(NodeId position, std::vector<ValueId> parts, std::int64_t dim, const Node& like) {
    const ValueId whole = edit_.fresh();
    const ConcatAttrs attrs{
        .num_operands = static_cast<std::int64_t>(parts.size()), .dim = dim, .name = name_};
    edit_.insert(position, make(make_op(attrs), std::move(parts), whole, like));
    return whole;
  }

  // Cuts `whole` into the group's parts along `dim`, which take the ids `parts`.
  void slices(NodeId position,
              ValueId whole,
              const std::vector<ValueId>& parts,
              std::int64_t dim,
              const Node& like) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Dim& rows = graph_[group_.weights[i]].type.dims[0];
      const SliceAttrs attrs{.dim = dim, .begin = begin, .size = rows.bound, .name = rows.name};
      edit_.insert(position, make(make_op(attrs), {whole}, parts[i], like));
      begin += rows.bound;
    }
  }

  void forward() {
    const NodeId position = group_.members[0];
    const Node& first = graph_.nodes[position.at()];
    std::vector<ValueId> operands = {group_.input, concat(position, group_.weights, 0, first)};
    if (!group_.biases.empty()) {
      operands.push_back(concat(position, group_.biases, 0, first));
    }
    const ValueId result = edit_.fresh();
    edit_.insert(position, make(first.op, std::move(operands), result, first));
    slices(position, result, group_.results, result_dim(), first);
    for (const NodeId member : group_.members) {
      edit_.remove(member);
    }
  }

  // The dim of a product that comes from the weights' first dim.
  std::int64_t result_dim() const {
    return static_cast<std::int64_t>(graph_[group_.input].type.num_dims()) - 1;
  }

  std::vector<ValueId> first_operands(const std::vector<NodeId>& nodes) const {
    std::vector<ValueId> values;
    for (const NodeId node : nodes) {
      values.push_back(graph_.nodes[node.at()].operands[0]);
    }
    return values;
  }

  // Where all of `nodes` have run.
  static NodeId last_of(const std::vector<NodeId>& nodes) {
    return *std::max_element(nodes.begin(), nodes.end());
  }

  // dx = sum_i dy_i w_i, added in the order of the members, becomes one product over their joint
  // dim.
  void input_gradient(const std::vector<NodeId>& products) {
    std::vector<NodeId> additions;
    ValueId sum = graph_.nodes[products[0].at()].results[0];
    for (std::size_t i = 1; i < products.size(); ++i) {
      const ValueId next = graph_.nodes[products[i].at()].results[0];
      const auto& readers = users_[sum.at()];
      if (readers.size() != 1 || users_[next.at()] != readers) {
        return;
      }
      const Node& node = graph_.nodes[readers[0].at()];
      if (node.op->get_if<AddAttrs>() == nullptr || node.operands != std::vector{sum, next}) {
        return;
      }
      additions.push_back(readers[0]);
      sum = node.results[0];
    }
    const NodeId position = additions.back();
    const Node& like = graph_.nodes[products[0].at()];
    const ValueId gradient =
        concat_once(last_of(products), first_operands(products), result_dim(), like);
    const ValueId weight = concat(position, group_.weights, 0, like);
    edit_.insert(position, make(like.op, {gradient, weight}, sum, like));
    for (const NodeId node : products) {
      edit_.remove(node);
    }
    for (const NodeId node : additions) {
      edit_.remove(node);
    }
  }

  void weight_gradient(const std::vector<NodeId>& products) {
    const NodeId position = last_of(products);
    const Node& like = graph_.nodes[products[0].at()];
    const ValueId gradient = concat_once(position, first_operands(products), result_dim(), like);
    const ValueId whole = edit_.fresh();
    edit_.insert(position, make(like.op, {gradient, like.operands[1]}, whole, like));
    std::vector<ValueId> parts;
    for (const NodeId node : products) {
      parts.push_back(graph_.nodes[node.at()].results[0]);
      edit_.remove(node);
    }
    slices(position, whole, parts, 0, like);
  }

  // Both gradients read the joint gradient of the results: it is made once, where the first needs
  // it.
  ValueId concat_once(NodeId position,
                      const std::vector<ValueId>& parts,
                      std::int64_t dim,
                      const Node& like) {
    if (!joint_gradient_) {
      joint_gradient_ = concat(position, parts, dim, like);
    }
    return *joint_gradient_;
  }

  const Graph& graph_;
  GraphEdit& edit_;
  const Users& users_;
  const Group& group_;
  std::string name_;
  std::optional<ValueId> joint_gradient_;
};

}  // namespace

Graph group_gemms(const Graph& graph) {
  GraphEdit edit(graph);
  const Users readers = users(graph);
  for (const Group& group : find_groups(graph, readers)) {
    GroupRewriter(graph, edit, readers, group).run();
  }
  return edit.apply();
}

}  // namespace tessera
