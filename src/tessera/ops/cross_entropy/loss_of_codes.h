#pragma once

// For the op's kernels: with codes its products are those of scaled_matmul, and the codes of the
// logits' gradient those of quantize_float8.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tessera/ir/view.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/cross_entropy/cross_entropy_operands.h"
#include "tessera/ops/float8/float8.h"

namespace tessera {

// Rows whose logits exist together.
struct RowChunk {
  std::int64_t first;
  std::int64_t count;
};

class LossOfCodes {
 public:
  // A product of a chunk.
  struct Product {
    ScaledMatmulAttrs attrs;
    std::array<View, 5> operands;
    View result;

    std::span<const View> in() const { return std::span(operands).first(attrs.accumulate ? 5 : 4); }

    std::span<const View> out() const { return {&result, 1}; }
  };

  // `chunk`: rows of the largest one. `stored`: the dtype of logits in memory. `kept`: bytes_kept()
  // of a workspace, or null where only shapes are asked for. `attrs` and `of` must outlive it.
  LossOfCodes(const CrossEntropyAttrs& attrs,
              std::int64_t chunk,
              DType stored,
              const CrossEntropyOperands& of,
              std::byte* kept);

  // What a chunk's codes take.
  std::int64_t bytes_kept() const;

  // The most that query(product) gives for a product of a chunk.
  template <class Query>
  std::int64_t largest(const Query& query) const {
    std::int64_t result = 0;
    for (const std::int64_t count : {chunk_, rows_ % chunk_}) {
      const RowChunk rows = {.first = 0, .count = count};
      result = std::max(result, count == 0 ? 0 : query(logits(rows, nullptr)));
      for (const bool accumulate : {false, true}) {
        for (const auto& product : products_of_gradients(rows, accumulate)) {
          result = std::max(result, count == 0 || !product ? 0 : query(*product));
        }
      }
    }
    return result;
  }

  // to (count, V) = the logits of rows.
  template <class Context>
  void make_logits(Context& context,
                   const RowChunk& rows,
                   void* to,
                   std::span<std::byte> workspace) const {
    run_product(context, logits(rows, to), workspace);
  }

  // What dlogits (count, V) in attrs.logits, the gradient of the logits of rows, makes.
  // `accumulate`: to what is there of the head's.
  template <class Context>
  void make_gradients(Context& context,
                      const RowChunk& rows,
                      void* dlogits,
                      bool accumulate,
                      std::span<std::byte> workspace) const {
    const Quantization codes = quantization(rows, dlogits);
    run(codes.attrs,
        context,
        {.in = codes.operands, .out = codes.out(), .workspace = workspace.first(0)});
    for (const auto& product : products_of_gradients(rows, accumulate)) {
      if (product) {
        run_product(context, *product, workspace);
      }
    }
  }

 private:
  // Of the logits' gradient.
  struct Quantization {
    QuantizeFloat8Attrs attrs;
    std::array<View, 2> operands;
    std::array<View, 3> results;  // codes, those transposed where they are asked for, inverse

    std::span<const View> out() const { return std::span(results).first(attrs.transposed ? 3 : 2); }
  };

  template <class Context>
  static void run_product(Context& context,
                          const Product& product,
                          std::span<std::byte> workspace) {
    run(product.attrs, context, {.in = product.in(), .out = product.out(), .workspace = workspace});
  }

  Product logits(const RowChunk& rows, void* to) const;
  Quantization quantization(const RowChunk& rows, void* dlogits) const;

  // Of the hidden states and of the head, if they are asked for.
  std::array<std::optional<Product>, 2> products_of_gradients(const RowChunk& rows,
                                                              bool accumulate) const;

  std::int64_t bytes_of_codes() const;

  const CrossEntropyAttrs& attrs_;
  std::int64_t rows_;
  std::int64_t channels_;
  std::int64_t vocab_;
  std::int64_t chunk_;
  DType stored_;
  const CrossEntropyOperands& of_;
  std::byte* codes_;       // (chunk, V)
  std::byte* transposed_;  // (V, chunk)
  std::byte* inverse_;
};

}  // namespace tessera
