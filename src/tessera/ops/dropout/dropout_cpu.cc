#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/base/half.h"
#include "tessera/base/normal.h"
#include "tessera/base/random.h"
#include "tessera/comm/hierarchical.h"
#include "tessera/ops/dropout/dropout.h"

namespace tessera {

namespace {

float widen_kept(float value) {
  return value;
}

float widen_kept(BFloat16 value) {
  return to_float(value);
}

template <class T>
T round_kept(float value) {
  if constexpr (std::same_as<T, float>) {
    return value;
  } else {
    return to_bfloat16(value);
  }
}

// Elements of one sequence that lie side by side in the last dim.
struct DropoutRow {
  std::uint64_t first = 0;  // place of the first in the whole sequence
  std::uint32_t sequence = 0;
  std::int64_t size = 0;
};

struct DropoutMask {
  std::uint64_t key = 0;
  std::uint64_t threshold = 0;  // words below are dropped
  float scale = 1.0F;

  explicit DropoutMask(const DropoutAttrs& attrs)
      : key(random_key(static_cast<std::uint64_t>(attrs.seed), "dropout")),
        threshold(static_cast<std::uint64_t>(attrs.rate * 0x1p32)),
        scale(static_cast<float>(1.0 / (1.0 - attrs.rate))) {}

  // `bias` may be null.
  template <class T>
  void apply(const DropoutRow& row, const T* x, const T* bias, T* y) const {
    std::uint32_t words[4] = {};
    for (std::int64_t i = 0; i < row.size; ++i) {
      const std::uint64_t place = row.first + static_cast<std::uint64_t>(i);
      if (i == 0 || place % 4 == 0) {
        const std::uint64_t block = place / 4;
        words[0] = static_cast<std::uint32_t>(block);
        words[1] = static_cast<std::uint32_t>(block >> 32U);
        words[2] = row.sequence;
        words[3] = 0;
        philox_block(key, words);
      }
      const float u = bias == nullptr
                          ? widen_kept(x[i])
                          : widen_kept(round_kept<T>(widen_kept(x[i]) + widen_kept(bias[i])));
      // What is dropped is multiplied, so that a NaN stays one.
      y[i] = round_kept<T>(u * (words[place % 4] < threshold ? 0.0F : scale));
    }
  }
};

// The part of the whole tensor that is here; dims that are not there have a bound of 1.
struct DropoutPart {
  std::array<std::int64_t, 4> sizes = {1, 1, 1, 1};
  std::array<std::int64_t, 4> first = {};
  std::array<std::int64_t, 4> whole = {1, 1, 1, 1};

  DropoutPart(const DropoutAttrs& attrs, const View& x, cpu::Context& context) {
    for (std::size_t d = 0; d < static_cast<std::size_t>(x.num_dims); ++d) {
      sizes[d] = whole[d] = x.sizes[d];
      if (d > 0 && !attrs.cuts[d - 1].axes.empty()) {
        const DropoutCut& cut = attrs.cuts[d - 1];
        whole[d] = cut.whole;
        first[d] = place_along(context.levels(cut.axes, TrafficClass::kTensor)) * sizes[d];
      }
    }
  }
};

// Rows are those of all dims but the last one.
template <class T>
void drop_rows(const DropoutMask& mask,
               const DropoutPart& part,
               const Views& views,
               cpu::Range rows) {
  const View& x = views.in[1];
  const T* const bias = views.in.size() > 2 ? views.in[2].as<const T>() : nullptr;
  const View& y = views.out[0];
  const auto last = static_cast<std::size_t>(x.num_dims) - 1;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    std::array<std::int64_t, 4> at = {};
    std::int64_t rest = row;
    for (std::size_t d = last; d-- > 0;) {
      at[d] = rest % part.sizes[d];
      rest /= part.sizes[d];
    }
    std::int64_t place = 0;
    std::int64_t from = 0;
    std::int64_t to = 0;
    for (std::size_t d = 0; d <= last; ++d) {
      place = d == 0 ? 0 : place * part.whole[d] + part.first[d] + at[d];
      from += at[d] * x.strides[d];
      to += at[d] * y.strides[d];
    }
    const std::int32_t sequence = views.in[0].as<const std::int32_t>()[at[0]];
    mask.apply({.first = static_cast<std::uint64_t>(place),
                .sequence = static_cast<std::uint32_t>(sequence),
                .size = part.sizes[last]},
               x.as<const T>() + from,
               bias,
               y.as<T>() + to);
  }
}

}  // namespace

void run(const DropoutAttrs& attrs, cpu::Context& context, const Views& views) {
  const View& x = views.in[1];
  const DropoutMask mask(attrs);
  const DropoutPart part(attrs, x, context);
  const std::int64_t width = x.sizes[static_cast<std::size_t>(x.num_dims) - 1];
  const cpu::Work work = {.count = x.num_elements() / width, .elements = 4 * width};
  cpu::parallel_ranges(context.team(), work, [&](cpu::Range rows) {
    if (x.dtype == DType::kBF16) {
      drop_rows<BFloat16>(mask, part, views, rows);
    } else {
      drop_rows<float>(mask, part, views, rows);
    }
  });
}

}  // namespace tessera
