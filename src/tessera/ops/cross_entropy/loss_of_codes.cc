#include "tessera/ops/cross_entropy/loss_of_codes.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

// Parts of a workspace begin on cache lines.
constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

View matrix(void* data, DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t pitch) {
  return {
      .data = data, .dtype = dtype, .num_dims = 2, .sizes = {rows, columns}, .strides = {pitch, 1}};
}

View dense(void* data, DType dtype, std::int64_t rows, std::int64_t columns) {
  return matrix(data, dtype, rows, columns, columns);
}

// The address of element `first`, in storage order; null of what has no address yet.
void* advanced(const View& view, std::int64_t first) {
  const auto bytes = first * static_cast<std::int64_t>(size_bytes(view.dtype));
  return view.data == nullptr ? nullptr : view.as<std::byte>() + bytes;
}

// `count` of the reciprocals of scales; the one there is for all.
View inverses(const View& view, std::int64_t first, std::int64_t count) {
  if (view.num_dims == 0) {
    return view;
  }
  return {.data = advanced(view, first),
          .dtype = DType::kF32,
          .num_dims = 1,
          .sizes = {count},
          .strides = {1}};
}

View scalar(void* data) {
  return {.data = data, .dtype = DType::kF32, .num_dims = 0, .sizes = {}, .strides = {}};
}

}  // namespace

LossOfCodes::LossOfCodes(const CrossEntropyAttrs& attrs,
                         std::int64_t chunk,
                         DType stored,
                         const CrossEntropyOperands& of,
                         std::byte* kept)
    : attrs_(attrs),
      rows_(of.x.rows(1).count),
      channels_(of.head.sizes[1]),
      vocab_(of.head.sizes[0]),
      chunk_(chunk),
      stored_(stored),
      of_(of),
      codes_(kept),
      transposed_(kept == nullptr ? nullptr : kept + bytes_of_codes()),
      inverse_(kept == nullptr || !attrs.makes_head_gradient() ? transposed_
                                                               : transposed_ + bytes_of_codes()) {
  for (const View* view : {&of.head,
                           &of.labels,
                           &of.inverse_x,
                           &of.inverse_head,
                           &of.head_transposed,
                           &of.inverse_of_head_transposed,
                           &of.x_transposed,
                           &of.inverse_of_x_transposed,
                           &of.accumulator,
                           &of.dx,
                           &of.dhead}) {
    TESSERA_CHECK(view->is_contiguous(), "an operand or result of codes with gaps");
  }
}

std::int64_t LossOfCodes::bytes_of_codes() const {
  return aligned(chunk_ * vocab_);
}

std::int64_t LossOfCodes::bytes_kept() const {
  const std::int64_t copies = (attrs_.gradients ? 1 : 0) + (attrs_.makes_head_gradient() ? 1 : 0);
  return copies * bytes_of_codes() + (copies > 0 ? kAlignment : 0);
}

LossOfCodes::Product LossOfCodes::logits(const RowChunk& rows, void* to) const {
  const View& x = of_.x;
  const std::int64_t pitch = x.rows(1).stride;
  return {
      .attrs = {.dtype = stored_},
      .operands = {matrix(advanced(x, rows.first * pitch), x.dtype, rows.count, channels_, pitch),
                   of_.head,
                   inverses(of_.inverse_x, rows.first, rows.count),
                   of_.inverse_head},
      .result = dense(to, stored_, rows.count, vocab_)};
}

LossOfCodes::Quantization LossOfCodes::quantization(const RowChunk& rows, void* dlogits) const {
  Quantization result = {.attrs = {.dims = 2,
                                   .dtype = DType::kF8E5M2,
                                   .power_of_two = attrs_.power_of_two,
                                   .transposed = attrs_.makes_head_gradient(),
                                   .rows = attrs_.makes_head_gradient() ? 1 : 0},
                         .operands = {dense(dlogits, attrs_.logits, rows.count, vocab_), of_.seed},
                         .results = {dense(codes_, DType::kF8E5M2, rows.count, vocab_),
                                     dense(transposed_, DType::kF8E5M2, vocab_, rows.count),
                                     scalar(inverse_)}};
  if (!result.attrs.transposed) {
    result.results[1] = result.results[2];
  }
  return result;
}

std::array<std::optional<LossOfCodes::Product>, 2> LossOfCodes::products_of_gradients(
    const RowChunk& rows, bool accumulate) const {
  std::array<std::optional<Product>, 2> products;
  if (attrs_.gradients) {
    const View& head = of_.head_transposed;
    products[0] = {
        .attrs = {.dtype = attrs_.dtype},
        .operands = {dense(codes_, DType::kF8E5M2, rows.count, vocab_),
                     dense(head.data, head.dtype, channels_, vocab_),
                     scalar(inverse_),
                     of_.inverse_of_head_transposed},
        .result =
            dense(advanced(of_.dx, rows.first * channels_), of_.dx.dtype, rows.count, channels_)};
  }
  if (attrs_.makes_head_gradient()) {
    const View& x = of_.x_transposed;
    products[1] = {
        .attrs = {.accumulate = accumulate},
        .operands = {dense(transposed_, DType::kF8E5M2, vocab_, rows.count),
                     matrix(advanced(x, rows.first), x.dtype, channels_, rows.count, rows_),
                     scalar(inverse_),
                     of_.inverse_of_x_transposed,
                     of_.dhead},
        .result = of_.dhead};
  }
  return products;
}

}  // namespace tessera
