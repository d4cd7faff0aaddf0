#pragma once

// Attention as an operation graph: bf16, over sequences of tokens in order, which are the rows of
// the batch or, forward, causal and found on the device, stretches of the rows.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/backend/cuda/cudnn/operation_graph.h"

namespace tessera::cuda {

// The tensors of attention that lie in memory: forward reads the first three and writes the next
// two, backward reads the first six and writes the next three. Then scratch of backward's: dout . o
// of each query, and in any order dq in f32. Last what says where stretches lie: the starts in the
// first five (sequences + 1) i64, in elements, and their lengths (sequences) i32: of queries and of
// keys, equal, as two tensors, which is how NVIDIA's frontend gives them to cuDNN.
enum class FlashTensor : std::uint8_t {
  kQ,
  kK,
  kV,
  kO,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kDelta,
  kDqSum,
  kStartsQ,
  kStartsK,
  kStartsV,
  kStartsO,
  kStartsLse,
  kQueryLengths,
  kKeyLengths,
};

inline constexpr std::size_t kNumFlashTensors = 18;

// The starts of one of the first five.
constexpr FlashTensor starts_of(FlashTensor tensor) {
  return static_cast<FlashTensor>(static_cast<std::size_t>(FlashTensor::kStartsQ) +
                                  static_cast<std::size_t>(tensor));
}

template <class T>
class ByFlashTensor : public std::array<T, kNumFlashTensors> {
 public:
  T& operator[](FlashTensor tensor) { return this->at(static_cast<std::size_t>(tensor)); }

  const T& operator[](FlashTensor tensor) const {
    return this->at(static_cast<std::size_t>(tensor));
  }
};

// What decides about the graph. Strides are those of batch, tokens and heads, in elements; a head's
// channels lie together.
struct FlashProblem {
  bool backward = false;
  bool causal = true;
  bool any_order = false;
  std::int64_t sequences = 0;  // stretches of the rows that there may be; 0: the rows themselves
  float scale = 1.0F;
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t channels = 0;
  ByFlashTensor<std::array<std::int64_t, 3>> strides = {};

  friend bool operator==(const FlashProblem&, const FlashProblem&) = default;
};

using FlashPointers = ByFlashTensor<void*>;

struct FlashGraph {
  OperationGraph graph;
  ByFlashTensor<std::size_t> places = {};  // in graph.tensors; of those that this direction has

  // By places, those that are not null.
  std::vector<void*> by_place(const FlashPointers& pointers) const;
};

// In the order in which cuDNN 9's engines know attention. Source of the pattern: NVIDIA's
// cudnn-frontend 1.x, whose attention nodes expand to it.
// Backward has two. One is deterministic: the slopes of all scores are stored, and dq is a product
// of them. In any order, parts of dq are added up as they come, by atomic additions in f32.
FlashGraph flash_graph(const FlashProblem& problem);

// What cuDNN's engines for Hopper may take for the graph, beside the tensors in memory: what those
// of 9.19 do and some slack, as another version may want a little more. The older engines take
// less. That of the deterministic backward grows with the square of the tokens. Source: measured on
// cuDNN 9.19 (cudnn_plan_test.cc).
std::int64_t flash_workspace_bytes(const FlashProblem& problem);

inline constexpr std::int64_t kFlashSlack = std::int64_t{1} << 20U;

// Of backward's scratch, one behind the other, the library's workspace behind it: 256-byte places.
struct FlashScratch {
  std::int64_t dq_sum = 0;  // behind delta
  std::int64_t library = 0;
};

FlashScratch flash_scratch(const FlashProblem& problem);

// Of backward, which may be done a part at a time: the largest part, in whole rows of the batch or
// in whole groups of one row's heads, that takes at most limits().flash_workspace with its scratch,
// without the slack. Batch 0: none does.
FlashProblem largest_part(const FlashProblem& problem);

}  // namespace tessera::cuda
