#pragma once

// For the op's kernels.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/comm/hierarchical.h"
#include "tessera/ir/view.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/cross_entropy/cross_entropy_operands.h"
#include "tessera/ops/gemm.h"

namespace tessera {

// Cuts a workspace into parts.
struct WorkspaceParts {
  std::span<std::byte> rest;

  template <class T>
  T* take(std::int64_t bytes) {
    auto* const part = reinterpret_cast<T*>(rest.data());
    rest = rest.subspan(static_cast<std::size_t>(bytes));
    return part;
  }
};

// The op's numbers, its products, and the parts of a workspace that every kernel needs: logits of a
// chunk, and a loss a row.
struct CrossEntropyProblem {
  std::int64_t rows;
  std::int64_t channels;
  std::int64_t vocab;  // rows of the head
  std::int64_t chunk;
  std::int64_t pitch;  // of x
  DType dtype;         // of the logits' gradient: that of the inputs, for codes that of logits
  DType stored;        // of logits in memory

  CrossEntropyProblem(const CrossEntropyAttrs& attrs,
                      const CrossEntropyOperands& of,
                      DType stored_logits)
      : vocab(of.head.sizes[0]),
        dtype(attrs.codes ? attrs.logits : of.x.dtype),
        stored(stored_logits) {
    const View::Rows x = of.x.rows(1);
    rows = x.count;
    channels = x.width;
    chunk = std::min(attrs.chunk, rows);
    pitch = x.stride;
  }

  // Parts of a workspace begin on cache lines.
  static std::int64_t aligned(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = 64;
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::int64_t logits_bytes() const {
    return aligned(chunk * vocab * static_cast<std::int64_t>(size_bytes(stored)));
  }

  static std::int64_t loss_bytes(std::int64_t num_rows) { return aligned(num_rows * 8); }

  Gemm logits(std::int64_t m) const {
    return {.m = m,
            .n = vocab,
            .k = channels,
            .transpose_b = true,
            .pitch_a = pitch,
            .pitch_b = channels,
            .pitch_c = vocab,
            .input = dtype,
            .output = stored};
  }

  // `pitch_dlogits`: elements from a row of the logits' gradient to the next, as of
  // head_gradient().
  Gemm hidden_gradient(std::int64_t m, std::int64_t pitch_dlogits) const {
    return {.m = m,
            .n = channels,
            .k = vocab,
            .pitch_a = pitch_dlogits,
            .pitch_b = channels,
            .pitch_c = channels,
            .input = dtype,
            .output = dtype};
  }

  Gemm head_gradient(std::int64_t m, std::int64_t pitch_dlogits, bool accumulate) const {
    return {.m = vocab,
            .n = channels,
            .k = m,
            .transpose_a = true,
            .pitch_a = pitch_dlogits,
            .pitch_b = pitch,
            .pitch_c = channels,
            .input = dtype,
            .accumulate = accumulate};
  }
};

// The entries of the vocabulary that lie here, without padding.
struct VocabularyEntries {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// `rows` of the head lie here, a shard where the vocabulary is cut over `levels`.
inline VocabularyEntries entries_here(const CrossEntropyAttrs& attrs,
                                      Levels levels,
                                      std::int64_t rows) {
  if (attrs.axes.empty()) {
    return {.first = 0, .count = attrs.vocab > 0 ? attrs.vocab : rows};
  }
  const Part part = part_of(place_along(levels), rows, attrs.whole_vocab);
  return {.first = part.begin, .count = part.size};
}

}  // namespace tessera
