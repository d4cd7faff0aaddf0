#include "tessera/passes/memory/storage.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

// A part of a concat's result.
struct Part {
  ValueId whole;
  std::int64_t dim;
  std::int64_t begin;  // along dim
};

Category category_of(const ValueInfo& value) {
  if (is_state(value.kind)) {
    return category_of(value.state.role);
  }
  return value.kind == ValueKind::kResult ? Category::kActivation : Category::kInput;
}

// Libraries choose kernels for products by the pitches of factors and results: these must not
// depend on what is kept for later (docs/design/determinism.md, D3). So it is views alone that make
// a factor or a product lie otherwise than in a buffer of its own.
bool is_product(const Op& op) {
  return op.get_if<MatmulAttrs>() != nullptr || op.get_if<ScaledMatmulAttrs>() != nullptr ||
         op.get_if<CrossEntropyAttrs>() != nullptr;
}

class StorageAssigner {
 public:
  explicit StorageAssigner(const Graph& graph)
      : graph_(graph),
        last_use_(graph.values.size(), -1),
        is_factor_(graph.values.size(), false),
        part_of_(graph.values.size()),
        content_of_(graph.values.size()) {
    storage_.tensors.resize(graph.values.size());
  }

  Storage run() {
    find_uses();
    find_parts();
    find_twins();
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      if (graph_.values[i].kind != ValueKind::kResult) {
        place_source(ValueId::of(i));
      }
    }
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      place_results(static_cast<std::int32_t>(i));
    }
    mark_gradients();
    return std::move(storage_);
  }

 private:
  static constexpr std::int32_t kForever = 1 << 30;

  const TensorRef& tensor(ValueId value) const { return storage_.tensors[value.at()]; }

  void place(ValueId value, TensorRef place) {
    values_in_[place.buffer.at()].push_back(value);
    storage_.tensors[value.at()] = std::move(place);
  }

  bool placed(ValueId value) const { return storage_.tensors[value.at()].buffer.valid(); }

  void find_uses() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (const ValueId operand : graph_.nodes[i].operands) {
        last_use_[operand.at()] = static_cast<std::int32_t>(i);
      }
    }
    // From the last node back: of what a product reads by a view, too.
    for (std::size_t i = graph_.nodes.size(); i-- > 0;) {
      const Node& node = graph_.nodes[i];
      const bool reads_factors = is_product(*node.op) || (info(*node.op).view != ViewKind::kNone &&
                                                          is_factor_[node.results[0].at()]);
      for (const ValueId operand : node.operands) {
        is_factor_[operand.at()] = is_factor_[operand.at()] || reads_factors;
      }
    }
    for (const Output& output : graph_.outputs) {
      last_use_[output.value.at()] = kForever;
      if (output.updates) {
        content_of_[output.value.at()] = *output.updates;
      }
    }
  }

  // Which values are made inside a concat, found from the last node back so that an op in place in
  // front of a concat works in the right memory from the start.
  void find_parts() {
    for (std::size_t i = graph_.nodes.size(); i-- > 0;) {
      const Node& node = graph_.nodes[i];
      if (const auto* concat = node.op->get_if<ConcatAttrs>(); concat != nullptr) {
        std::int64_t begin = 0;
        for (const ValueId operand : node.operands) {
          part_of_[operand.at()] = {.whole = node.results[0], .dim = concat->dim, .begin = begin};
          begin += graph_[operand].type.dims[static_cast<std::size_t>(concat->dim)].bound;
        }
        continue;
      }
      for (const Alias& alias : info(*node.op).aliases) {
        const ValueId operand = node.operands[static_cast<std::size_t>(alias.operand)];
        const ValueId result = node.results[static_cast<std::size_t>(alias.result)];
        const bool is_free = graph_[operand].kind == ValueKind::kResult &&
                             !part_of_[operand.at()] &&
                             last_use_[operand.at()] == static_cast<std::int32_t>(i) &&
                             !is_view_result(operand) && !is_product(producer_of(operand)) &&
                             !is_factor_[operand.at()] && may_lie_over(node, alias.result, operand);
        if (part_of_[result.at()] && is_free && same_memory_shape(operand, result)) {
          part_of_[operand.at()] = part_of_[result.at()];
          break;
        }
      }
    }
  }

  void find_twins() {
    for (const Node& node : graph_.nodes) {
      if (node.op->get_if<ConcatAttrs>() != nullptr) {
        concats_of_[node.operands].push_back(node.results[0]);
      }
    }
  }

  // Whether the node allows result `r` over `operand` wherever it reads that.
  static bool may_lie_over(const Node& node, std::int32_t r, ValueId operand) {
    const std::vector<Alias> aliases = info(*node.op).aliases;
    for (std::size_t o = 0; o < node.operands.size(); ++o) {
      if (node.operands[o] == operand &&
          std::none_of(aliases.begin(), aliases.end(), [&](const Alias& alias) {
            return alias.result == r && alias.operand == static_cast<std::int32_t>(o);
          })) {
        return false;
      }
    }
    return true;
  }

  const Op& producer_of(ValueId value) const {
    return *graph_.nodes[graph_[value].producer.at()].op;
  }

  bool is_view_result(ValueId value) const {
    return info(producer_of(value)).view != ViewKind::kNone;
  }

  bool same_memory_shape(ValueId a, ValueId b) const {
    const TensorType& x = graph_[a].type;
    const TensorType& y = graph_[b].type;
    return x.dtype == y.dtype &&
           std::equal(
               x.dims.begin(), x.dims.end(), y.dims.begin(), y.dims.end(), [](auto& m, auto& n) {
                 return m.bound == n.bound;
               });
  }

  BufferId new_buffer(ValueId value, bool persistent) {
    const ValueInfo& facts = graph_[value];
    storage_.buffers.push_back(
        {.name = facts.name.empty() ? format("%{}", value.index) : facts.name,
         .category = category_of(facts),
         .bytes = facts.type.num_bytes(),
         .persistent = persistent,
         .is_scalar = facts.kind == ValueKind::kScalar});
    values_in_.emplace_back();
    return BufferId::of(storage_.buffers.size() - 1);
  }

  void place_in_new_buffer(ValueId value, bool persistent) {
    const TensorType& type = graph_[value].type;
    place(value,
          {.buffer = new_buffer(value, persistent),
           .offset = 0,
           .type = type,
           .strides = dense_strides(type)});
  }

  // `value` as the stretch of `whole` that starts at `begin` of `dim`.
  void place_inside(ValueId value, ValueId whole, std::int64_t dim, std::int64_t begin) {
    const TensorRef outer = tensor(whole);
    const auto element = static_cast<std::int64_t>(size_bytes(outer.type.dtype));
    place(value,
          {.buffer = outer.buffer,
           .offset = outer.offset + begin * outer.strides[static_cast<std::size_t>(dim)] * element,
           .type = graph_[value].type,
           .strides = outer.strides});
  }

  const Part& part_of(ValueId value) const {
    const std::optional<Part>& part = part_of_[value.at()];
    TESSERA_CHECK(part.has_value(), "%{} is no part of a concat", value.index);
    return *part;
  }

  // The result of a concat needs its memory as soon as its first part is made.
  void place_part(ValueId value) {
    const Part part = part_of(value);
    if (!placed(part.whole)) {
      if (part_of_[part.whole.at()]) {
        place_part(part.whole);
      } else {
        place_in_new_buffer(part.whole, graph_[value].kind != ValueKind::kResult);
        StorageBuffer& buffer = storage_.buffers[tensor(part.whole).buffer.at()];
        buffer.category = category_of(graph_[value]);
        buffer.name = graph_[value].name.empty() ? buffer.name : graph_[value].name + "+";
      }
    }
    place_inside(value, part.whole, part.dim, part.begin);
  }

  void place_source(ValueId value) {
    if (placed(value)) {
      return;
    }
    if (!part_of_[value.at()]) {
      place_in_new_buffer(value, true);
      return;
    }
    place_part(value);
    // Several concats of the same states (forward, backward) are one and the same tensor.
    const Part part = part_of(value);
    const Node& concat = graph_.nodes[graph_[part.whole].producer.at()];
    for (const ValueId twin : concats_of_.at(concat.operands)) {
      if (!placed(twin)) {
        take_memory(twin, part.whole);
      }
    }
  }

  void place_results(std::int32_t index) {
    const Node& node = graph_.nodes[static_cast<std::size_t>(index)];
    if (const auto* slice = node.op->get_if<SliceAttrs>(); slice != nullptr) {
      place_inside(node.results[0], node.operands[0], slice->dim, slice->begin);
      return;
    }
    if (node.op->get_if<ConcatAttrs>() != nullptr) {
      check_concat(node);
      return;
    }
    const OpInfo facts = info(*node.op);
    for (std::size_t r = 0; r < node.results.size(); ++r) {
      place_result(node, facts, static_cast<std::int32_t>(r), index);
    }
  }

  void check_concat(const Node& node) {
    const ValueId whole = node.results[0];
    TESSERA_CHECK(placed(whole), "nothing is made in concat %{}", whole.index);
    for (const ValueId operand : node.operands) {
      TESSERA_CHECK(tensor(operand).buffer == tensor(whole).buffer,
                    "%{} is not made inside concat %{}",
                    operand.index,
                    whole.index);
    }
  }

  void place_result(const Node& node, const OpInfo& facts, std::int32_t r, std::int32_t index) {
    const ValueId result = node.results[static_cast<std::size_t>(r)];
    if (part_of_[result.at()]) {
      place_part(result);
      return;
    }
    if (const auto state = content_of_[result.at()]) {
      TESSERA_CHECK(last_use_[state->at()] <= index,
                    "state \"{}\" is read after its new content is made",
                    graph_[*state].name);
      take_memory(result, *state);
      return;
    }
    for (const Alias& alias : facts.aliases) {
      const ValueId operand = node.operands[static_cast<std::size_t>(alias.operand)];
      if (alias.result == r &&
          (alias.required || (may_lie_over(node, r, operand) && is_as_dense(operand, result) &&
                              can_overwrite(operand, result, index)))) {
        take_memory(result, operand);
        return;
      }
    }
    place_in_new_buffer(result, false);
  }

  // Whether a result lies over the operand as in a buffer of its own, or no product reads it.
  bool is_as_dense(ValueId operand, ValueId result) const {
    constexpr std::int64_t kAligned = 256;  // of which libraries take notice
    const TensorRef& place = tensor(operand);
    return !is_factor_[result.at()] ||
           (place.strides == dense_strides(graph_[result].type) && place.offset % kAligned == 0);
  }

  void take_memory(ValueId result, ValueId operand) {
    TensorRef same = tensor(operand);
    same.type = graph_[result].type;
    place(result, std::move(same));
  }

  // Whether node `index` may write over `operand`: no other value that is read later, and no other
  // result of the node, lies in those bytes.
  bool can_overwrite(ValueId operand, ValueId result, std::int32_t index) const {
    if (graph_[operand].kind != ValueKind::kResult || last_use_[operand.at()] > index ||
        !same_memory_shape(operand, result)) {
      return false;
    }
    const TensorRef& target = storage_.tensors[operand.at()];
    if (storage_.buffers[target.buffer.at()].persistent) {
      return false;
    }
    const auto& values = values_in_[target.buffer.at()];
    return std::none_of(values.begin(), values.end(), [&](ValueId value) {
      const bool is_own_result = graph_[value].producer.index == index;
      return value != operand && (last_use_[value.at()] >= index || is_own_result) &&
             overlap(storage_.tensors[value.at()], target);
    });
  }

  // Whether two tensors of one buffer may share bytes. Slices along one dim of one tensor do not:
  // equal strides and disjoint stretches within the longest stride that tells them apart.
  static bool overlap(const TensorRef& a, const TensorRef& b) {
    if (a.strides != b.strides || a.type.num_dims() != b.type.num_dims()) {
      return true;
    }
    const auto element = static_cast<std::int64_t>(size_bytes(a.type.dtype));
    for (std::size_t d = 0; d < a.strides.size(); ++d) {
      const std::int64_t outer = d == 0 ? 0 : a.strides[d - 1];
      const std::int64_t stride = a.strides[d] * element;
      const auto start = [&](const TensorRef& t) {
        return (outer == 0 ? t.offset : t.offset % (outer * element)) / stride;
      };
      const std::int64_t x = start(a);
      const std::int64_t y = start(b);
      if (x + a.type.dims[d].bound <= y || y + b.type.dims[d].bound <= x) {
        return false;
      }
    }
    return true;
  }

  // What backward leaves for the update is gradient memory.
  void mark_gradients() {
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::kUpdate) {
        continue;
      }
      for (const ValueId operand : node.operands) {
        const NodeId producer = graph_[operand].producer;
        if (producer.valid() && graph_.nodes[producer.at()].phase != Phase::kUpdate) {
          StorageBuffer& buffer = storage_.buffers[tensor(operand).buffer.at()];
          buffer.category =
              buffer.category == Category::kActivation ? Category::kGradient : buffer.category;
        }
      }
    }
  }

  const Graph& graph_;
  Storage storage_;
  std::vector<std::vector<ValueId>> values_in_;  // by buffer
  std::vector<std::int32_t> last_use_;           // node index, by value
  std::vector<bool> is_factor_;                  // a product reads it, by value
  std::vector<std::optional<Part>> part_of_;
  std::vector<std::optional<ValueId>> content_of_;  // the state that a value updates
  std::map<std::vector<ValueId>, std::vector<ValueId>> concats_of_;  // results, by operands
};

}  // namespace

Storage assign_storage(const Graph& graph) {
  return StorageAssigner(graph).run();
}

}  // namespace tessera
