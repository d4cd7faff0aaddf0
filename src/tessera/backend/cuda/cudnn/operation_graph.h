#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::cuda {

// A graph of operations as cuDNN's graph API takes it, which makes one kernel of those patterns
// that it knows. Tensors have four dims. What is virtual exists in the kernel alone.

enum class GraphType { kF32, kBF16, kI32, kI64, kBoolean };

using GraphDims = std::array<std::int64_t, 4>;

struct GraphTensor {
  GraphDims sizes = {1, 1, 1, 1};
  GraphDims strides = {1, 1, 1, 1};  // elements
  GraphType type = GraphType::kF32;
  bool is_virtual = true;
  std::optional<float> constant = {};  // its one element, known beforehand
  // Of a tensor whose entries along dim 0 are sequences of different lengths: where each begins,
  // (n + 1, 1, 1, 1) i64 in elements, in place of the stride; and how long it is, (n, 1, 1, 1) i32,
  // along the dim of tokens. What lies behind is not read, and not written. Places of tensors.
  std::optional<std::size_t> starts = {};
  std::optional<std::size_t> lengths = {};
  std::size_t token_dim = 2;
};

// x, b and t are operands, y is the result. Where b has one element along a dim, it serves all of
// x.
enum class GraphOpKind {
  kMatmul,       // y[.., i, j] = sum_k x[.., i, k] b[.., k, j]; a head of b serves a group of x's
  kReshape,      // the elements of x as they would lie in memory, read by y's strides
  kMax,          // over the dims along which y has one element
  kSum,          // likewise; where y has fewer heads than x, each is the sum of a group
  kMultiply,     // x b
  kAdd,          // x + b
  kSubtract,     // x - b
  kDivide,       // x / b
  kCopy,         // x
  kExp,          // e^x
  kLog,          // ln x
  kRowIndex,     // the place along dim 2
  kColumnIndex,  // the place along dim 3
  kAtLeast,      // x >= b
  kLess,         // x < b
  kBoth,         // x and b hold
  kSelect,       // x where t holds, else b
};

// Operands and results are places in OperationGraph::tensors.
struct GraphOp {
  GraphOpKind kind = GraphOpKind::kMatmul;
  std::size_t x = 0;
  std::size_t y = 0;
  std::optional<std::size_t> b = {};
  std::optional<std::size_t> t = {};
  // Of a product: how many of x's rows, of b's columns, and of what is summed over each sequence
  // has.
  std::optional<std::size_t> rows = {};
  std::optional<std::size_t> columns = {};
  std::optional<std::size_t> depth = {};
};

// Operations stand behind those that they read.
struct OperationGraph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphOp> ops;
};

// Strides of a tensor without gaps.
constexpr GraphDims packed_strides(const GraphDims& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

}  // namespace tessera::cuda
