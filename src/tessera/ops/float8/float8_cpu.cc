#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/backend/cpu/widened_gemm.h"
#include "tessera/base/error.h"
#include "tessera/base/float8.h"
#include "tessera/base/half.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/float8/float8_operands.h"
#include "tessera/ops/float8/float8_results.h"
#include "tessera/ops/float8/scales.h"
#include "tessera/ops/matmul/matmul_gemm.h"

namespace tessera {
namespace cpu {
namespace {

// Columns that a thread works on at a time, so that a row of them is whole cache lines.
constexpr std::int64_t kBlockColumns = 256;

float as_float(float value) {
  return value;
}

float as_float(BFloat16 value) {
  return to_float(value);
}

template <class T>
std::uint32_t largest_of(const T* values, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, magnitude_bits(as_float(values[i])));
  }
  return largest;
}

// A maximum has no order, so that threads may take theirs in any.
template <class T>
void amax_of_all(ThreadTeam& team, const RowsOf<const T>& x, float* result) {
  std::atomic<std::uint32_t> largest = 0;
  const auto take = [&](std::uint32_t value) {
    std::uint32_t known = largest.load(std::memory_order_relaxed);
    while (known < value &&
           !largest.compare_exchange_weak(known, value, std::memory_order_relaxed)) {
    }
  };
  if (x.count == 1) {
    parallel_ranges(team, {.count = x.width}, [&](Range range) {
      take(largest_of(x[0] + range.begin, range.end - range.begin));
    });
  } else {
    parallel_ranges(team, {.count = x.count, .elements = x.width}, [&](Range range) {
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        take(largest_of(x[row], x.width));
      }
    });
  }
  *result = std::bit_cast<float>(largest.load());
}

template <class T>
void amax_of_rows(ThreadTeam& team, const RowsOf<const T>& x, float* result) {
  parallel_ranges(team, {.count = x.count, .elements = x.width}, [&](Range range) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      result[row] = std::bit_cast<float>(largest_of(x[row], x.width));
    }
  });
}

template <class T>
void amax_of_columns(ThreadTeam& team, const RowsOf<const T>& x, float* result) {
  const Work columns = {.count = x.width, .elements = x.count, .cut = kBlockColumns};
  parallel_ranges(team, columns, [&](Range range) {
    for (std::int64_t begin = range.begin; begin < range.end; begin += kBlockColumns) {
      const std::int64_t size = std::min(kBlockColumns, range.end - begin);
      std::array<std::uint32_t, kBlockColumns> largest = {};
      for (std::int64_t row = 0; row < x.count; ++row) {
        const T* const values = x[row] + begin;
        for (std::int64_t i = 0; i < size; ++i) {
          auto& known = largest[static_cast<std::size_t>(i)];
          known = std::max(known, magnitude_bits(as_float(values[i])));
        }
      }
      std::transform(largest.begin(), largest.begin() + size, result + begin, [](auto bits) {
        return std::bit_cast<float>(bits);
      });
    }
  });
}

template <class T>
void run_amax(const AmaxAttrs& attrs, ThreadTeam& team, const AmaxOperands& of) {
  const ScaleShape shape =
      scale_shape(attrs.dims, attrs.leading, of.x, common_inner_dims(std::span(&of.x, 1)));
  const RowsOf<const T> x(of.x, shape.inner);
  auto* const result = flat<float>(of.amax).data();
  switch (shape.sharing) {
    case Sharing::kAll:
      return amax_of_all(team, x, result);
    case Sharing::kRows:
      return amax_of_rows(team, x, result);
    case Sharing::kColumns:
      return amax_of_columns(team, x, result);
  }
}

template <class T, class Float8>
class Quantizer {
 public:
  // Of operands that have codes.
  Quantizer(const QuantizeFloat8Attrs& attrs, ThreadTeam& team, const QuantizeFloat8Operands& of)
      : team_(team),
        power_of_two_(attrs.power_of_two),
        shape_(scale_shape(
            attrs.dims, attrs.leading, of.x, common_inner_dims(std::array{of.x, of.codes}))),
        x_(of.x, shape_.inner),
        codes_(of.codes, shape_.inner),
        amax_(attrs.amax ? nullptr : flat<const float>(of.amax).data()),
        inverse_(flat<float>(of.inverse).data()) {}

  void run() const {
    switch (shape_.sharing) {
      case Sharing::kAll:
        return all();
      case Sharing::kRows:
        return rows();
      case Sharing::kColumns:
        return columns();
    }
  }

 private:
  float scale(std::int64_t i) const { return scale_of(amax_[i], Float8::kMax, power_of_two_); }

  float scale_of_row(std::int64_t row) const {
    return amax_ != nullptr ? scale(row)
                            : scale_of(std::bit_cast<float>(largest_of(x_[row], x_.width)),
                                       Float8::kMax,
                                       power_of_two_);
  }

  static void encode(const T* x, std::int64_t count, float scale, Float8* codes) {
    for (std::int64_t i = 0; i < count; ++i) {
      codes[i] = to_float8<Float8>(as_float(x[i]) * scale);
    }
  }

  void all() const {
    const float scale = this->scale(0);
    *inverse_ = 1.0F / scale;
    if (x_.count == 1) {
      parallel_ranges(team_, {.count = x_.width, .cut = 64}, [&](Range range) {
        encode(x_[0] + range.begin, range.end - range.begin, scale, codes_[0] + range.begin);
      });
      return;
    }
    parallel_ranges(team_, {.count = x_.count, .elements = x_.width}, [&](Range range) {
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        encode(x_[row], x_.width, scale, codes_[row]);
      }
    });
  }

  void rows() const {
    parallel_ranges(team_, {.count = x_.count, .elements = x_.width}, [&](Range range) {
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        const float scale = scale_of_row(row);
        inverse_[row] = 1.0F / scale;
        encode(x_[row], x_.width, scale, codes_[row]);
      }
    });
  }

  void columns() const {
    const Work columns = {.count = x_.width, .elements = x_.count, .cut = kBlockColumns};
    parallel_ranges(team_, columns, [&](Range range) {
      for (std::int64_t begin = range.begin; begin < range.end; begin += kBlockColumns) {
        column_block(begin, std::min(kBlockColumns, range.end - begin));
      }
    });
  }

  void column_block(std::int64_t begin, std::int64_t size) const {
    std::array<float, kBlockColumns> scales = {};
    for (std::int64_t i = 0; i < size; ++i) {
      scales[static_cast<std::size_t>(i)] = scale(begin + i);
      inverse_[begin + i] = 1.0F / scales[static_cast<std::size_t>(i)];
    }
    for (std::int64_t row = 0; row < x_.count; ++row) {
      const T* const x = x_[row] + begin;
      Float8* const codes = codes_[row] + begin;
      for (std::int64_t i = 0; i < size; ++i) {
        codes[i] = to_float8<Float8>(as_float(x[i]) * scales[static_cast<std::size_t>(i)]);
      }
    }
  }

  ThreadTeam& team_;
  bool power_of_two_;
  ScaleShape shape_;
  RowsOf<const T> x_;
  RowsOf<Float8> codes_;
  const float* amax_;  // null: found here
  float* inverse_;
};

template <class T>
void run_quantize(const QuantizeFloat8Attrs& attrs,
                  ThreadTeam& team,
                  const QuantizeFloat8Operands& of) {
  if (attrs.dtype == DType::kF8E4M3) {
    Quantizer<T, Float8E4M3>(attrs, team, of).run();
  } else {
    Quantizer<T, Float8E5M2>(attrs, team, of).run();
  }
}

// A view of the sizes of `like` without gaps.
View dense_view(const View& like, DType dtype, std::byte* data) {
  View view = like;
  view.data = data;
  view.dtype = dtype;
  std::int64_t stride = 1;
  for (auto i = static_cast<std::size_t>(view.num_dims); i > 0; --i) {
    view.strides[i - 1] = stride;
    stride *= view.sizes[i - 1];
  }
  return view;
}

// to (c.., r..) = from (r.., c..), r `dims` dims; a square at a time, so that both sides stay in
// the cache.
void transpose(ThreadTeam& team, std::int64_t dims, const View& from_view, const View& to_view) {
  constexpr std::int64_t kSquare = 64;
  const RowsOf<const std::uint8_t> from(from_view,
                                        from_view.num_dims - static_cast<std::int32_t>(dims));
  std::uint8_t* const to = flat<std::uint8_t>(to_view).data();
  const Work columns = {.count = from.width, .elements = from.count, .cut = kSquare};
  parallel_ranges(team, columns, [&](Range range) {
    for (std::int64_t first = 0; first < from.count; first += kSquare) {
      const std::int64_t last = std::min(first + kSquare, from.count);
      for (std::int64_t column = range.begin; column < range.end; ++column) {
        for (std::int64_t row = first; row < last; ++row) {
          to[column * from.count + row] = from[row][column];
        }
      }
    }
  });
}

// As run_gemm() does it: the pitch of C is its own, that of the codes theirs.
Gemm gemm_of(const ScaledMatmulAttrs& attrs, const ScaledMatmulOperands& of) {
  return tessera::gemm_of(product_of(attrs), of.a, of.b, of.y);
}

Float8Factor factor_of(const View& codes, const View& inverse) {
  return {.dtype = codes.dtype,
          .codes = codes.data,
          .inverse = flat<const float>(inverse).data(),
          .is_one = inverse.num_dims == 0};
}

}  // namespace
}  // namespace cpu

void run(const AmaxAttrs& attrs, cpu::Context& context, const Views& views) {
  const AmaxOperands of = by_name(attrs, views);
  if (of.x.dtype == DType::kBF16) {
    cpu::run_amax<BFloat16>(attrs, context.team(), of);
  } else {
    cpu::run_amax<float>(attrs, context.team(), of);
  }
}

void make_float8(const Float8Results& wanted,
                 cpu::Context& context,
                 const View& y,
                 std::span<const View> results) {
  const Views views = float8_views(wanted, y, results);
  if (wanted.amax) {
    run(AmaxAttrs{.dims = y.num_dims}, context, views);
  } else if (wanted.codes) {
    run(code_attrs(wanted), context, views);
  }
}

// Codes that nobody asked for.
std::int64_t workspace_bytes(const QuantizeFloat8Attrs& attrs,
                             cpu::Context& /*context*/,
                             Types in) {
  return attrs.codes ? 0 : in[0].num_elements();
}

void run(const QuantizeFloat8Attrs& attrs, cpu::Context& context, const Views& views) {
  QuantizeFloat8Operands of = by_name(attrs, views);
  if (!attrs.codes) {
    of.codes = cpu::dense_view(of.x, attrs.dtype, views.workspace.data());
  }
  if (of.x.dtype == DType::kBF16) {
    cpu::run_quantize<BFloat16>(attrs, context.team(), of);
  } else {
    cpu::run_quantize<float>(attrs, context.team(), of);
  }
  if (attrs.transposed) {
    cpu::transpose(context.team(), attrs.rows, of.codes, of.transposed);
  }
}

void run(const TransposeCodesAttrs& attrs, cpu::Context& context, const Views& views) {
  const TransposeCodesOperands of = by_name(attrs, views);
  cpu::transpose(context.team(), attrs.rows, of.codes, of.transposed);
}

std::int64_t workspace_bytes(const ScaledMatmulAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View> results) {
  const auto of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  return cpu::widened_gemm_workspace_bytes(context, cpu::gemm_of(attrs, of));
}

void run(const ScaledMatmulAttrs& attrs, cpu::Context& context, const Views& views) {
  const ScaledMatmulOperands of = by_name(attrs, views);
  cpu::run_float8_gemm(context,
                       cpu::gemm_of(attrs, of),
                       cpu::factor_of(of.a, of.inverse_a),
                       cpu::factor_of(of.b, of.inverse_b),
                       of.y.data,
                       views.workspace);
}

}  // namespace tessera
