#pragma once

// What attention on a CUDA device makes of its operands before any kernel: tasks, which form takes
// them, and what lies in the workspace. It needs no device.

#include <cstddef>
#include <cstdint>

#include "tessera/backend/cuda/kernels/workspace.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/attention_cuda.h"
#include "tessera/ops/attention/attention_operands.h"
#include "tessera/ops/attention/attention_part.h"

namespace tessera::cuda {

// Channels of a head in the plain form: each is one thread's.
inline constexpr std::int64_t kMostChannels = kThreads;

inline Shape shape_of(const View& q, const View& k) {
  TESSERA_REQUIRE(q.sizes[3] <= kMostChannels,
                  ErrorCode::kUnsupported,
                  "attention heads {} wide on a CUDA device, expected at most {}",
                  q.sizes[3],
                  kMostChannels);
  return {.batch = q.sizes[0],
          .queries = q.sizes[1],
          .keys = k.sizes[1],
          .heads = q.sizes[2],
          .kv_heads = k.sizes[2],
          .channels = q.sizes[3]};
}

inline Mask mask_of(const AttentionIds& ids, bool causal, std::int64_t window) {
  return {.query_positions = cpu::flat<const std::int32_t>(ids.query_positions).data(),
          .key_positions = cpu::flat<const std::int32_t>(ids.key_positions).data(),
          .query_documents = cpu::flat<const std::int32_t>(ids.query_documents).data(),
          .key_documents = cpu::flat<const std::int32_t>(ids.key_documents).data(),
          .causal = causal,
          .window = static_cast<std::int32_t>(window)};
}

template <class Attrs>
ScoreForm score_form_of(const Attrs& attrs) {
  return {.scale = static_cast<float>(attrs.scale), .cap = static_cast<float>(attrs.softcap)};
}

// Of attention, and, but for what it goes on from, of a step over one part of the keys.
template <class T, class Out = T, class Attrs>
Forward<T, Out> forward_task(const Attrs& attrs, const AttentionOperands& of) {
  return {.shape = shape_of(of.q, of.k),
          .mask = mask_of(of.ids, attrs.causal, attrs.window),
          .q = Heads<const T>(of.q),
          .k = Heads<const T>(of.k),
          .v = Heads<const T>(of.v),
          .o = Heads<Out>(of.o),
          .lse = cpu::flat<float>(of.lse).data(),
          .form = score_form_of(attrs)};
}

// Of such a step with all that it has: Out is f32 but in the last one.
template <class T, class Out>
Forward<T, Out> forward_task(const AttentionPartAttrs& attrs, const AttentionPartOperands& part) {
  auto task = forward_task<T, Out>(attrs, part.of);
  if (attrs.step > 0) {
    task.carry_o = Heads<const float>(part.carry_o);
    task.carry_lse = cpu::flat<const float>(part.carry_lse).data();
  }
  return task;
}

// Whether sums may have any order, which is for a library: steps have our own kernels.
inline bool any_order_of(const AttentionBackwardAttrs& attrs) {
  return attrs.any_order;
}

inline bool any_order_of(const AttentionPartBackwardAttrs& /*attrs*/) {
  return false;
}

// As forward_task().
template <class T, class Out = T, class Attrs>
Backward<T, Out> backward_task(const Attrs& attrs,
                               const AttentionBackwardOperands& of,
                               std::byte* workspace) {
  return {.shape = shape_of(of.q, of.k),
          .mask = mask_of(of.ids, attrs.causal, attrs.window),
          .dout = Heads<const T>(of.dout),
          .q = Heads<const T>(of.q),
          .k = Heads<const T>(of.k),
          .v = Heads<const T>(of.v),
          .o = Heads<const T>(of.o),
          .lse = cpu::flat<const float>(of.lse).data(),
          .dq = Heads<Out>(of.dq),
          .dk = Heads<Out>(of.dk),
          .dv = Heads<Out>(of.dv),
          .delta = reinterpret_cast<float*>(workspace),
          .form = score_form_of(attrs),
          .any_order = any_order_of(attrs)};
}

template <class T>
Backward<T, float> backward_task(const AttentionPartBackwardAttrs& attrs,
                                 const AttentionPartBackwardOperands& part,
                                 std::byte* workspace) {
  auto task = backward_task<T, float>(attrs, part.of, workspace);
  if (attrs.step > 0) {
    task.carry = Heads<const float>(part.carry);
  }
  return task;
}

// Whether tensor cores take all of them.
bool takes_flash(const AttentionOperands& of);
bool takes_flash(const AttentionPartOperands& part);
bool takes_flash(const AttentionBackwardOperands& of);
bool takes_flash(const AttentionPartBackwardOperands& part);

// What is known of a row's queries and keys before it runs.
enum class Form {
  kWholeRows,  // the same tokens, one document in order
  kDocuments,  // as many of both, causal: they may be the same tokens, documents one behind the
               // other
  kAny
};

struct FormFacts {
  bool whole_rows;
  bool causal;
  std::int64_t window;
  bool has_cap;
};

// Rows of one token are nothing for a library: cuDNN's frontend refuses them backward, and forward
// with groups of heads lse is written for the first head of each group alone.
Form form_of(const FormFacts& facts, const View& q, const View& k);

template <class Attrs>
Form form_of(const Attrs& attrs, const View& q, const View& k) {
  return form_of(FormFacts{.whole_rows = attrs.whole_rows,
                           .causal = attrs.causal,
                           .window = attrs.window,
                           .has_cap = attrs.softcap > 0.0},
                 q,
                 k);
}

// Of backward by own kernels: delta, and after it what run_flash() takes.
std::int64_t delta_bytes(const Shape& shape);

// Where the last tile of 128 keys is half full, cuDNN's backward for Hopper takes the scores of the
// keys that are not there for 0, unless a causal mask hides them: dq is NaN where exp(-lse)
// overflows. Source: NVIDIA/cudnn-frontend, pull request 628; pytorch/pytorch, issue 196678.
bool may_leave_nans(const FlashProblem& problem);

// The parts in which a library does backward; batch 0: it cannot.
FlashProblem library_part(const FlashProblem& problem);

// What a search for documents finds, in the workspace.
struct Sequences {
  std::int64_t most = 0;
  std::int64_t* starts[5] = {};     // of q, k, v, o and lse: most + 1
  std::int32_t* lengths = nullptr;  // most
  std::int32_t* first = nullptr;    // the first token of each, counted through the rows: most + 1
  std::int32_t* found = nullptr;    // 1 where these are all that the rows have, else 0
};

// What the workspace of documents within rows holds.
struct SequencesScratch {
  Sequences sequences;
  float* lse;  // (b, t, heads)
  std::int64_t library;

  SequencesScratch(std::byte* data, const Shape& shape);
};

// With lse token by token, as ragged tensors lie wherever cuDNN's attention is used.
FlashProblem sequences_problem(const Forward<BFloat16>& task);

}  // namespace tessera::cuda

namespace tessera::cuda::flash {

inline constexpr int kTile = 64;  // rows of a block, and of what it walks over

constexpr std::int64_t tiles_of(std::int64_t batches, std::int64_t heads, std::int64_t length) {
  return batches * heads * ((length + kTile - 1) / kTile);
}

// What a tile's positions and documents lie between.
struct alignas(16) Range {
  std::int32_t min_position;
  std::int32_t max_position;
  std::int32_t min_document;
  std::int32_t max_document;
};

}  // namespace tessera::cuda::flash
