#pragma once

// What the dropout kernels share.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/base/random.h"
#include "tessera/comm/collective_context.h"
#include "tessera/comm/hierarchical.h"
#include "tessera/ir/view.h"
#include "tessera/ops/dropout/dropout.h"

namespace tessera {

// Which elements are dropped, and by what the others are multiplied.
struct DropoutMask {
  std::uint64_t key = 0;
  std::uint64_t threshold = 0;  // words below are dropped
  float scale = 1.0F;

  explicit DropoutMask(const DropoutAttrs& attrs)
      : key(random_key(static_cast<std::uint64_t>(attrs.seed), "dropout")),
        threshold(static_cast<std::uint64_t>(attrs.rate * 0x1p32)),
        scale(static_cast<float>(1.0 / (1.0 - attrs.rate))) {}

  // What an element with this word is multiplied by.
  constexpr float factor(std::uint32_t word) const { return word < threshold ? 0.0F : scale; }
};

// A row of elements that lie side by side in the last dim: where it begins, in elements.
struct DropoutRow {
  std::int64_t sequence = 0;  // of the batch
  std::int64_t place = 0;     // in the whole sequence
  std::int64_t from = 0;
  std::int64_t to = 0;
};

// The part of the whole tensor that is here. Dims that are not there have a bound of 1; they come
// before those that are, but for the batch's.
struct DropoutPart {
  std::int64_t sizes[4] = {1, 1, 1, 1};
  std::int64_t first[4] = {};
  std::int64_t whole[4] = {1, 1, 1, 1};
  std::int64_t from[4] = {};  // strides of x
  std::int64_t to[4] = {};    // strides of y

  DropoutPart(const DropoutAttrs& attrs, const View& x, const View& y, CollectiveContext& context) {
    const auto num_dims = static_cast<std::size_t>(x.num_dims);
    for (std::size_t d = 0; d < num_dims; ++d) {
      const std::size_t at = d == 0 ? 0 : d + 4 - num_dims;
      sizes[at] = whole[at] = x.sizes[d];
      from[at] = x.strides[d];
      to[at] = y.strides[d];
      if (d > 0 && !attrs.cuts.at(d - 1).axes.empty()) {
        const DropoutCut& cut = attrs.cuts.at(d - 1);
        whole[at] = cut.whole;
        first[at] = place_along(context.levels(cut.axes, TrafficClass::kTensor)) * sizes[at];
      }
    }
  }

  constexpr std::int64_t rows() const { return sizes[0] * sizes[1] * sizes[2]; }

  constexpr std::int64_t width() const { return sizes[3]; }

  constexpr DropoutRow row(std::int64_t number) const {
    const std::int64_t at[3] = {
        number / (sizes[1] * sizes[2]), number / sizes[2] % sizes[1], number % sizes[2]};
    const std::int64_t inner = (first[1] + at[1]) * whole[2] + first[2] + at[2];
    return {.sequence = at[0],
            .place = inner * whole[3] + first[3],
            .from = at[0] * from[0] + at[1] * from[1] + at[2] * from[2],
            .to = at[0] * to[0] + at[1] * to[1] + at[2] * to[2]};
  }
};

}  // namespace tessera
