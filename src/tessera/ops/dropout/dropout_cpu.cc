#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/base/half.h"
#include "tessera/base/normal.h"
#include "tessera/ops/dropout/dropout_problem.h"

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

// `bias` may be null.
template <class T>
void drop_row(const DropoutMask& mask,
              std::int64_t place,
              std::uint32_t sequence,
              std::span<const T> x,
              const T* bias,
              T* y) {
  std::uint32_t words[4] = {};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint64_t at = static_cast<std::uint64_t>(place) + i;
    if (i == 0 || at % 4 == 0) {
      const std::uint64_t block = at / 4;
      words[0] = static_cast<std::uint32_t>(block);
      words[1] = static_cast<std::uint32_t>(block >> 32U);
      words[2] = sequence;
      words[3] = 0;
      philox_block(mask.key, words);
    }
    const float u = bias == nullptr
                        ? widen_kept(x[i])
                        : widen_kept(round_kept<T>(widen_kept(x[i]) + widen_kept(bias[i])));
    // What is dropped is multiplied, so that a NaN stays one.
    y[i] = round_kept<T>(u * mask.factor(words[at % 4]));
  }
}

template <class T>
void drop_rows(const DropoutMask& mask,
               const DropoutPart& part,
               const Views& views,
               cpu::Range rows) {
  const T* const bias = views.in.size() > 2 ? views.in[2].as<const T>() : nullptr;
  for (std::int64_t number = rows.begin; number < rows.end; ++number) {
    const DropoutRow row = part.row(number);
    drop_row<T>(mask,
                row.place,
                static_cast<std::uint32_t>(views.in[0].as<const std::int32_t>()[row.sequence]),
                {views.in[1].as<const T>() + row.from, static_cast<std::size_t>(part.width())},
                bias,
                views.out[0].as<T>() + row.to);
  }
}

}  // namespace

void run(const DropoutAttrs& attrs, cpu::Context& context, const Views& views) {
  const View& x = views.in[1];
  const DropoutMask mask(attrs);
  const DropoutPart part(attrs, x, views.out[0], context);
  const cpu::Work work = {.count = part.rows(), .elements = 4 * part.width()};
  cpu::parallel_ranges(context.team(), work, [&](cpu::Range rows) {
    if (x.dtype == DType::kBF16) {
      drop_rows<BFloat16>(mask, part, views, rows);
    } else {
      drop_rows<float>(mask, part, views, rows);
    }
  });
}

}  // namespace tessera
