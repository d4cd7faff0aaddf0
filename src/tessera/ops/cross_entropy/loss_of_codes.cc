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
                         std::span<const View> operands,
                         std::span<const View> results,
                         std::byte* kept)
    : attrs_(attrs),
      rows_(operands[0].rows(1).count),
      channels_(operands[1].sizes[1]),
      vocab_(operands[1].sizes[0]),
      chunk_(chunk),
      stored_(stored),
      operands_(operands),
      results_(results),
      codes_(kept),
      transposed_(kept == nullptr ? nullptr : kept + bytes_of_codes()),
      inverse_(kept == nullptr || !attrs.makes_head_gradient() ? transposed_
                                                               : transposed_ + bytes_of_codes()) {
  for (const View& operand : operands.subspan(1)) {
    TESSERA_CHECK(operand.is_contiguous(), "an operand of codes with gaps");
  }
  for (const View& result : results) {
    TESSERA_CHECK(result.is_contiguous(), "a result of codes with gaps");
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
  const View& x = operands_[0];
  const std::int64_t pitch = x.rows(1).stride;
  return {
      .attrs = {.dtype = stored_},
      .operands = {matrix(advanced(x, rows.first * pitch), x.dtype, rows.count, channels_, pitch),
                   operands_[1],
                   inverses(operands_[4], rows.first, rows.count),
                   operands_[5]},
      .result = dense(to, stored_, rows.count, vocab_)};
}

LossOfCodes::Quantization LossOfCodes::quantization(const RowChunk& rows, void* dlogits) const {
  Quantization result = {
      .attrs = {.dims = 2,
                .dtype = DType::kF8E5M2,
                .power_of_two = attrs_.power_of_two,
                .transposed = attrs_.makes_head_gradient(),
                .rows = attrs_.makes_head_gradient() ? 1 : 0},
      .operands = {dense(dlogits, attrs_.logits, rows.count, vocab_), operands_[3]},
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
  const std::size_t first_gradient = attrs_.loss ? 1 : 0;
  if (attrs_.gradients) {
    const View& dx = results_[first_gradient];
    const View& head = operands_[6];
    products[0] = {
        .attrs = {.dtype = attrs_.dtype},
        .operands = {dense(codes_, DType::kF8E5M2, rows.count, vocab_),
                     dense(head.data, head.dtype, channels_, vocab_),
                     scalar(inverse_),
                     operands_[7]},
        .result = dense(advanced(dx, rows.first * channels_), dx.dtype, rows.count, channels_)};
  }
  if (attrs_.makes_head_gradient()) {
    const View& x = operands_[8];
    const View& dhead = results_[first_gradient + 1];
    products[1] = {
        .attrs = {.accumulate = accumulate},
        .operands = {dense(transposed_, DType::kF8E5M2, vocab_, rows.count),
                     matrix(advanced(x, rows.first), x.dtype, channels_, rows.count, rows_),
                     scalar(inverse_),
                     operands_[9],
                     dhead},
        .result = dhead};
  }
  return products;
}

}  // namespace tessera
