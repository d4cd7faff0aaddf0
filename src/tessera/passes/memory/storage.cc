#include "tessera/passes/memory/storage.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/memory/concats.h"
#include "tessera/passes/memory/storage_builder.h"
#include "tessera/passes/memory/value_uses.h"

namespace tessera {
namespace {

Category category_of(const ValueInfo& value) {
  if (is_state(value.kind)) {
    return category_of(value.state.role);
  }
  return value.kind == ValueKind::kResult ? Category::kActivation : Category::kInput;
}

StorageBuffer own_buffer(const Graph& graph, ValueId value) {
  const ValueInfo& facts = graph[value];
  return {.name = facts.name.empty() ? format("%{}", value.index) : facts.name,
          .category = category_of(facts),
          .bytes = facts.type.num_bytes(),
          .persistent = facts.kind != ValueKind::kResult,
          .is_scalar = facts.kind == ValueKind::kScalar};
}

// The buffer of a concat's result is for what its parts are, and has the name of the first.
StorageBuffer buffer_of_parts(const Graph& graph, ValueId whole, ValueId first) {
  const StorageBuffer of_first = own_buffer(graph, first);
  StorageBuffer buffer = own_buffer(graph, whole);
  buffer.persistent = of_first.persistent;
  buffer.category = of_first.category;
  buffer.name = graph[first].name.empty() ? buffer.name : graph[first].name + "+";
  return buffer;
}

// Whether two tensors of one buffer may share bytes. Slices along one dim of one tensor do not:
// equal strides and disjoint stretches within the longest stride that tells them apart.
bool may_share_bytes(const TensorRef& a, const TensorRef& b) {
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

bool is_made_before_update(const Node& node) {
  return node.phase != Phase::kUpdate || node.op->get_if<ReceiveAttrs>() != nullptr;
}

// What backward leaves for the update is gradient memory, that of another rank's, too.
void mark_gradients(const Graph& graph, Storage& storage) {
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::kUpdate) {
      continue;
    }
    for (const ValueId operand : node.operands) {
      const NodeId producer = graph[operand].producer;
      if (producer.valid() && is_made_before_update(graph.nodes[producer.at()])) {
        StorageBuffer& buffer = storage.buffers[storage.tensors[operand.at()].buffer.at()];
        buffer.category =
            buffer.category == Category::kActivation ? Category::kGradient : buffer.category;
      }
    }
  }
}

class StorageAssigner {
 public:
  explicit StorageAssigner(const Graph& graph)
      : graph_(graph),
        uses_(find_uses(graph)),
        concats_(find_concats(graph, uses_)),
        storage_(graph) {}

  Storage run() {
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      if (graph_.values[i].kind != ValueKind::kResult) {
        place_source(ValueId::of(i));
      }
    }
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      place_results(NodeId::of(i));
    }
    return storage_.take();
  }

 private:
  // The result of a concat needs its memory as soon as its first part is made.
  void place_part(ValueId value, const ConcatPart& part) {
    if (!storage_.is_placed(part.whole)) {
      if (const auto& whole = concats_.part_of[part.whole.at()]) {
        place_part(part.whole, *whole);
      } else {
        storage_.place_in(buffer_of_parts(graph_, part.whole, value), part.whole);
      }
    }
    storage_.place_inside(value, part.whole, part.dim, part.begin);
  }

  void place_source(ValueId value) {
    if (storage_.is_placed(value)) {
      return;
    }
    const std::optional<ConcatPart>& part = concats_.part_of[value.at()];
    if (!part) {
      storage_.place_in(own_buffer(graph_, value), value);
      return;
    }
    place_part(value, *part);
    // Several concats of the same states (forward, backward) are one and the same tensor.
    const Node& concat = graph_.nodes[graph_[part->whole].producer.at()];
    for (const ValueId twin : concats_.results_of.at(concat.operands)) {
      if (!storage_.is_placed(twin)) {
        storage_.place_over(twin, part->whole);
      }
    }
  }

  void place_results(NodeId id) {
    const Node& node = graph_.nodes[id.at()];
    if (const auto* slice = node.op->get_if<SliceAttrs>(); slice != nullptr) {
      storage_.place_inside(node.results[0], node.operands[0], slice->dim, slice->begin);
      return;
    }
    if (node.op->get_if<ConcatAttrs>() != nullptr) {
      check_concat(node);
      return;
    }
    const OpInfo facts = info(*node.op);
    for (std::size_t r = 0; r < node.results.size(); ++r) {
      place_result(id, facts, static_cast<std::int32_t>(r));
    }
  }

  void check_concat(const Node& node) const {
    const ValueId whole = node.results[0];
    TESSERA_CHECK(storage_.is_placed(whole), "nothing is made in concat %{}", whole.index);
    for (const ValueId operand : node.operands) {
      TESSERA_CHECK(storage_.tensor(operand).buffer == storage_.tensor(whole).buffer,
                    "%{} is not made inside concat %{}",
                    operand.index,
                    whole.index);
    }
  }

  void place_result(NodeId id, const OpInfo& facts, std::int32_t r) {
    const Node& node = graph_.nodes[id.at()];
    const ValueId result = node.results[static_cast<std::size_t>(r)];
    const auto state = uses_.updates[result.at()];
    if (state) {
      TESSERA_CHECK(uses_.last[state->at()] <= id || adds_up_elsewhere(*state, node),
                    "state \"{}\" is read after its new content is made",
                    graph_[*state].name);
    }
    if (const auto& part = concats_.part_of[result.at()]) {
      place_part(result, *part);
      return;
    }
    if (state) {
      storage_.place_over(result, *state);
      return;
    }
    for (const Alias& alias : facts.aliases) {
      const ValueId operand = node.operands[static_cast<std::size_t>(alias.operand)];
      if (alias.result == r &&
          (alias.required || (may_overwrite(graph_, uses_, id, alias) &&
                              is_as_dense(operand, result) && is_alone(operand, id)))) {
        storage_.place_over(result, operand);
        return;
      }
    }
    storage_.place_in(own_buffer(graph_, result), result);
  }

  // Whether it is what other chunks add to an accumulator that reads it later than `node` does.
  bool adds_up_elsewhere(ValueId state, const Node& node) const {
    return graph_[state].kind == ValueKind::kGradient &&
           graph_.nodes[uses_.last[state.at()].at()].chunk != node.chunk;
  }

  // Whether a result lies over the operand as in a buffer of its own, or no product reads it.
  bool is_as_dense(ValueId operand, ValueId result) const {
    constexpr std::int64_t kAligned = 256;  // of which libraries take notice
    const TensorRef& place = storage_.tensor(operand);
    return !uses_.is_factor[result.at()] ||
           (place.strides == dense_strides(graph_[result].type) && place.offset % kAligned == 0);
  }

  // Whether the bytes of `operand` hold nothing else that counts when node `id` writes there: no
  // state but an accumulator, no other value that the node or a later one reads, and no other
  // result of the node.
  bool is_alone(ValueId operand, NodeId id) const {
    const StorageBuffer& buffer = storage_.buffer_of(operand);
    if (buffer.persistent && buffer.category != Category::kGradient) {
      return false;
    }
    const TensorRef& target = storage_.tensor(operand);
    const std::vector<ValueId>& values = storage_.values_beside(operand);
    return std::none_of(values.begin(), values.end(), [&](ValueId value) {
      const bool is_own_result = graph_[value].producer == id;
      return value != operand && (uses_.last[value.at()] >= id || is_own_result) &&
             may_share_bytes(storage_.tensor(value), target);
    });
  }

  const Graph& graph_;
  ValueUses uses_;
  Concats concats_;
  StorageBuilder storage_;
};

}  // namespace

Storage assign_storage(const Graph& graph) {
  Storage storage = StorageAssigner(graph).run();
  mark_gradients(graph, storage);
  return storage;
}

}  // namespace tessera
