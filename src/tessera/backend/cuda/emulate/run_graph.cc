#include "tessera/backend/cuda/emulate/run_graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "tessera/backend/cuda/emulate/emulate.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"

namespace tessera::cuda {
namespace {

std::int64_t offset_of(const GraphDims& place, const GraphDims& strides) {
  std::int64_t offset = 0;
  for (std::size_t dim = 0; dim < 4; ++dim) {
    offset += place[dim] * strides[dim];
  }
  return offset;
}

// Calls body(place) for every element of a tensor.
template <class Body>
void for_each(const GraphDims& sizes, const Body& body) {
  GraphDims place = {};
  for (place[0] = 0; place[0] < sizes[0]; ++place[0]) {
    for (place[1] = 0; place[1] < sizes[1]; ++place[1]) {
      for (place[2] = 0; place[2] < sizes[2]; ++place[2]) {
        for (place[3] = 0; place[3] < sizes[3]; ++place[3]) {
          body(place);
        }
      }
    }
  }
}

// The values of one run.
class Interpreter {
 public:
  Interpreter(const OperationGraph& graph, const std::vector<void*>& pointers)
      : graph_(graph), pointers_(pointers), values_(graph.tensors.size()) {
    for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
      const GraphTensor& tensor = graph.tensors[i];
      if (tensor.is_virtual) {
        GraphDims last = tensor.sizes;
        std::ranges::for_each(last, [](std::int64_t& size) { --size; });
        values_[i].resize(static_cast<std::size_t>(offset_of(last, tensor.strides)) + 1,
                          std::numeric_limits<float>::quiet_NaN());
      } else {
        TESSERA_CHECK(tensor.constant || pointers.at(i) != nullptr, "tensor {} has no memory", i);
      }
    }
  }

  void run(const GraphOp& op) {
    if (op.kind == GraphOpKind::kMatmul) {
      matmul(op);
    } else if (op.kind == GraphOpKind::kReshape) {
      reshape(op);
    } else if (op.kind == GraphOpKind::kMax || op.kind == GraphOpKind::kSum) {
      reduce(op);
    } else {
      for_each(graph_.tensors[op.y].sizes,
               [&](const GraphDims& place) { set(op.y, place, element(op, place)); });
    }
  }

 private:
  // Where a tensor has one element along a dim, it serves all of another's.
  float get(std::size_t tensor, GraphDims place) const {
    const GraphTensor& of = graph_.tensors[tensor];
    if (of.constant) {
      return *of.constant;
    }
    for (std::size_t dim = 0; dim < 4; ++dim) {
      place[dim] = of.sizes[dim] == 1 ? 0 : place[dim];
      TESSERA_CHECK(place[dim] < of.sizes[dim], "tensor {} is read behind its end", tensor);
    }
    if (!has(of, place)) {
      return 0.0F;
    }
    const std::int64_t offset = offset_in(of, place);
    if (of.is_virtual) {
      return values_[tensor].at(static_cast<std::size_t>(offset));
    }
    if (of.type == GraphType::kI32) {
      return static_cast<float>(static_cast<const std::int32_t*>(pointers_[tensor])[offset]);
    }
    return of.type == GraphType::kBF16
               ? to_float(static_cast<const BFloat16*>(pointers_[tensor])[offset])
               : static_cast<const float*>(pointers_[tensor])[offset];
  }

  // Whether a tensor of sequences has the place.
  bool has(const GraphTensor& of, const GraphDims& place) const {
    return !of.lengths ||
           place[of.token_dim] < static_cast<const std::int32_t*>(pointers_[*of.lengths])[place[0]];
  }

  std::int64_t offset_in(const GraphTensor& of, GraphDims place) const {
    if (!of.starts) {
      return offset_of(place, of.strides);
    }
    const std::int64_t start = static_cast<const std::int64_t*>(pointers_[*of.starts])[place[0]];
    place[0] = 0;
    return start + offset_of(place, of.strides);
  }

  void set(std::size_t tensor, const GraphDims& place, float value) {
    const GraphTensor& of = graph_.tensors[tensor];
    if (!has(of, place)) {
      return;
    }
    const std::int64_t offset = offset_in(of, place);
    const bool is_bf16 = of.type == GraphType::kBF16;
    if (of.is_virtual) {
      values_[tensor].at(static_cast<std::size_t>(offset)) =
          is_bf16 ? to_float(to_bfloat16(value)) : value;
    } else if (is_bf16) {
      static_cast<BFloat16*>(pointers_[tensor])[offset] = to_bfloat16(value);
    } else {
      static_cast<float*>(pointers_[tensor])[offset] = value;
    }
  }

  float element(const GraphOp& op, const GraphDims& place) const {
    const auto x = [&] { return get(op.x, place); };
    const auto b = [&] { return get(op.b.value(), place); };
    switch (op.kind) {
      case GraphOpKind::kMultiply:
        return x() * b();
      case GraphOpKind::kAdd:
        return x() + b();
      case GraphOpKind::kSubtract:
        return x() - b();
      case GraphOpKind::kDivide:
        return x() / b();
      case GraphOpKind::kCopy:
        return x();
      case GraphOpKind::kExp:
        return std::exp(x());
      case GraphOpKind::kLog:
        return std::log(x());
      case GraphOpKind::kRowIndex:
        return static_cast<float>(place[2]);
      case GraphOpKind::kColumnIndex:
        return static_cast<float>(place[3]);
      case GraphOpKind::kAtLeast:
        return x() >= b() ? 1.0F : 0.0F;
      case GraphOpKind::kLess:
        return x() < b() ? 1.0F : 0.0F;
      case GraphOpKind::kBoth:
        return x() != 0.0F && b() != 0.0F ? 1.0F : 0.0F;
      case GraphOpKind::kSelect:
        return get(op.t.value(), place) != 0.0F ? x() : b();
      case GraphOpKind::kMatmul:
      case GraphOpKind::kReshape:
      case GraphOpKind::kMax:
      case GraphOpKind::kSum:
        break;
    }
    fail(ErrorCode::kInternal, "operation {} has no elements", static_cast<int>(op.kind));
  }

  void matmul(const GraphOp& op) {
    const GraphDims& x = graph_.tensors[op.x].sizes;
    const GraphDims& b = graph_.tensors[op.b.value()].sizes;
    TESSERA_CHECK(x[3] == b[2] && x[1] % b[1] == 0, "factors of sizes that do not fit");
    for_each(graph_.tensors[op.y].sizes, [&](const GraphDims& place) {
      const auto& [batch, head, row, column] = place;
      float sum = 0.0F;
      const std::int64_t depth =
          op.depth ? static_cast<const std::int32_t*>(pointers_[*op.depth])[batch] : x[3];
      for (std::int64_t k = 0; k < depth; ++k) {
        sum = std::fma(get(op.x, {batch, head, row, k}),
                       get(*op.b, {batch, head / (x[1] / b[1]), k, column}),
                       sum);
      }
      set(op.y, place, sum);
    });
  }

  // Memory has no place that only one of the two tensors has.
  void reshape(const GraphOp& op) {
    const GraphTensor& from = graph_.tensors[op.x];
    const GraphTensor& to = graph_.tensors[op.y];
    if (from.is_virtual) {
      values_[op.y] = values_[op.x];
      if (to.type == GraphType::kBF16) {
        for (float& value : values_[op.y]) {
          value = to_float(to_bfloat16(value));
        }
      }
      return;
    }
    for_each(to.sizes, [&](const GraphDims& place) {
      values_[op.y].at(static_cast<std::size_t>(offset_of(place, to.strides))) =
          to_float(static_cast<const BFloat16*>(pointers_[op.x])[offset_of(place, to.strides)]);
    });
  }

  void reduce(const GraphOp& op) {
    const bool is_sum = op.kind == GraphOpKind::kSum;
    const GraphDims& from = graph_.tensors[op.x].sizes;
    const GraphDims& to = graph_.tensors[op.y].sizes;
    for_each(to, [&](const GraphDims& place) {
      GraphDims window = {1, 1, 1, 1};
      for (std::size_t dim = 0; dim < 4; ++dim) {
        window[dim] = from[dim] / to[dim];
      }
      float folded = is_sum ? 0.0F : -std::numeric_limits<float>::infinity();
      for_each(window, [&](const GraphDims& step) {
        GraphDims source = {};
        for (std::size_t dim = 0; dim < 4; ++dim) {
          source[dim] = place[dim] * window[dim] + step[dim];
        }
        const float value = get(op.x, source);
        folded = is_sum ? folded + value : std::max(folded, value);
      });
      set(op.y, place, folded);
    });
  }

  const OperationGraph& graph_;
  const std::vector<void*>& pointers_;
  std::vector<std::vector<float>> values_;  // of virtual tensors, as they would lie in memory
};

class InterpretedGraphs final : public Graphs {
 public:
  bool takes(const FlashProblem& /*problem*/) override { return true; }

  bool run(CUstream_st* stream,
           const FlashProblem& problem,
           const FlashPointers& pointers,
           std::span<std::byte> workspace) override {
    if (was_recorded([=, this] { run(stream, problem, pointers, workspace); })) {
      return true;
    }
    TESSERA_CHECK(static_cast<std::int64_t>(workspace.size()) >= flash_workspace_bytes(problem),
                  "{} bytes of workspace for attention, expected {}",
                  workspace.size(),
                  flash_workspace_bytes(problem));
    // A device writes there, and what it finds in its scratch is of others.
    if (problem.backward) {
      const FlashScratch scratch = flash_scratch(problem);
      std::memset(pointers[FlashTensor::kDelta], 0x7f, static_cast<std::size_t>(scratch.dq_sum));
      if (problem.any_order) {
        std::memset(pointers[FlashTensor::kDqSum],
                    0x7f,
                    static_cast<std::size_t>(scratch.library - scratch.dq_sum));
      }
    }
    std::memset(workspace.data(), 0x7f, static_cast<std::size_t>(flash_workspace_bytes(problem)));
    const FlashGraph written = flash_graph(problem);
    run_graph(written.graph, written.by_place(pointers));
    return true;
  }
};

}  // namespace

void run_graph(const OperationGraph& graph, const std::vector<void*>& pointers) {
  Interpreter interpreter(graph, pointers);
  for (const GraphOp& op : graph.ops) {
    interpreter.run(op);
  }
}

std::unique_ptr<Graphs> make_interpreted_graphs() {
  return std::make_unique<InterpretedGraphs>();
}

}  // namespace tessera::cuda
