#pragma once

// What the forms of attention share (ops/attention/attention_cuda.cu, attention_flash_cuda.cu and
// attention_graph_cuda.cu).

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tessera/backend/cuda/cudnn/flash_graph.h"
#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ir/view.h"

namespace tessera::cuda {

// A (b, t, heads, d) tensor with contiguous d. Without data: there is none.
template <class T>
struct Heads {
  T* data = nullptr;
  std::int64_t strides[3] = {};

  Heads() = default;

  explicit Heads(const View& view)
      : data(view.as<T>()), strides{view.strides[0], view.strides[1], view.strides[2]} {
    TESSERA_CHECK(view.sizes[3] == 1 || view.strides[3] == 1, "a head's channels lie apart");
  }

  constexpr T* at(std::int64_t batch, std::int64_t token, std::int64_t head) const {
    return data + batch * strides[0] + token * strides[1] + head * strides[2];
  }
};

struct Shape {
  std::int64_t batch;
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t channels;

  constexpr std::int64_t group() const { return heads / kv_heads; }

  // Of a query's value among those that lie (b, heads, t).
  constexpr std::int64_t number_of(std::int64_t row, std::int64_t head, std::int64_t query) const {
    return (row * heads + head) * queries + query;
  }
};

struct Mask {
  const std::int32_t* query_positions;
  const std::int32_t* key_positions;
  const std::int32_t* query_documents;
  const std::int32_t* key_documents;
  bool causal;
  std::int32_t window;  // of positions up to the query's, where causal; 0: none

  // Whether a query at `query` sees a key at `key` of its document.
  constexpr bool sees(std::int32_t query, std::int32_t key) const {
    return !causal || (key <= query && (window == 0 || key > query - window));
  }
};

// What a product of a query and a key becomes before the softmax.
struct ScoreForm {
  float scale;
  float cap;  // a scaled score s is cap tanh(s / cap); 0: there is none

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)
  __device__ float score(float product) const {
    const float score = scale * product;
    return cap > 0.0F ? cap * tanhf(score / cap) : score;
  }

  // How much of a change of its product a score shows, but for the scale.
  __device__ float slope(float score) const {
    const float part = cap > 0.0F ? score / cap : 0.0F;
    return 1.0F - part * part;
  }
#endif
};

// Out is o's type: f32 in a step over one part of the keys (ops/attention/attention_part.h) but the
// last. Steps alone may go on from what those before left.
template <class T, class Out = T>
struct Forward {
  static constexpr bool kIsWide = !std::is_same_v<T, Out>;

  Shape shape;
  Mask mask;
  Heads<const T> q;
  Heads<const T> k;
  Heads<const T> v;
  Heads<Out> o;
  float* lse;  // (b, heads, t)
  ScoreForm form;
  // What the steps before left, over which o and lse may lie. Null: there is nothing.
  Heads<const float> carry_o = {};
  const float* carry_lse = nullptr;  // (b, heads, t)
  // On the device: another kernel has done it where this is 1. Null: none has.
  const std::int32_t* is_done = nullptr;

  constexpr bool is_left() const { return is_done == nullptr || *is_done == 0; }
};

// Out is the gradients' type: f32 in such a step, which alone may add to dq of those before.
template <class T, class Out = T>
struct Backward {
  static constexpr bool kIsWide = !std::is_same_v<T, Out>;

  Shape shape;
  Mask mask;
  Heads<const T> dout;
  Heads<const T> q;
  Heads<const T> k;
  Heads<const T> v;
  Heads<const T> o;
  const float* lse;  // (b, heads, t)
  Heads<Out> dq;
  Heads<Out> dk;
  Heads<Out> dv;
  float* delta;  // (b, heads, t): first in the workspace
  ScoreForm form;
  bool any_order;
  Heads<const float> carry = {};  // dq of the steps before, over which dq may lie
};

// By tensor cores, a tile of queries x keys at a time: of tensors of bf16, heads of at most 128
// channels in whole packs that are aligned (takes_flash()), with ranges_workspace_bytes() of
// workspace, which say which tiles see each other. Out is bf16 or f32.
std::int64_t ranges_workspace_bytes(const Shape& shape);
template <class Out>
void run_flash(const Context& context,
               const Forward<BFloat16, Out>& task,
               std::span<std::byte> workspace);
template <class Out>
void run_flash(const Context& context,
               const Backward<BFloat16, Out>& task,
               std::span<std::byte> workspace);

// For the two below: the graph of a task, with whole rows, and the tensors that it reads and
// writes.
FlashProblem graph_problem(const Forward<BFloat16>& task);
FlashProblem graph_problem(const Backward<BFloat16>& task);
FlashPointers graph_pointers(const Forward<BFloat16>& task);

// By a library's kernels, of tensors that run_flash() takes, where each row is one document in
// order and queries and keys are the same tokens. False, with nothing done, where it has none.
std::int64_t graph_workspace_bytes(const Forward<BFloat16>& task);
std::int64_t graph_workspace_bytes(const Backward<BFloat16>& task);  // 0: it has none
bool run_graph(const Context& context,
               const Forward<BFloat16>& task,
               std::span<std::byte> workspace);
bool run_graph(const Context& context,
               const Backward<BFloat16>& task,
               std::span<std::byte> workspace);

// Likewise, causal, where rows hold documents one behind the other: as the ids say when it runs.
// Where they say otherwise, or there are very many, nothing is done, and what it returns is 0 on
// the device, else 1. Null where there is no such kernel.
std::int64_t sequences_workspace_bytes(const Forward<BFloat16>& task);
const std::int32_t* run_sequences(const Context& context,
                                  const Forward<BFloat16>& task,
                                  std::span<std::byte> workspace);

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

// A bit for each lane of the warp, all of which call it.
__device__ inline std::uint32_t ballot(bool value) {
#ifdef __CUDACC__
  return __ballot_sync(0xFFFFFFFFU, value);
#else
  const std::uint32_t own = value ? 1U << threadIdx.x % kWarp : 0U;
  return warp_fold(own, [](std::uint32_t a, std::uint32_t b) { return a | b; });
#endif
}

// The number of the lowest bit of `bits` that is set; there is one. nvcc 13.0 makes
// the constant 32 of the standard library's countr_zero.
__device__ inline int lowest_bit(std::uint32_t bits) {
  return std::popcount((bits & (0U - bits)) - 1U);
}

#endif

}  // namespace tessera::cuda
