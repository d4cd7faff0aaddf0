#include "tessera/ops/cross_entropy/softmax_cpu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/cross_entropy/softmax_cpu.cc"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/base/error.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

// Largest of [0, size), at least -infinity; unspecified where a NaN is among them.
HWY_INLINE float largest(const float* data, std::int64_t size) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  constexpr std::int64_t kVectors = 4;
  VecF32 top[kVectors];
  for (VecF32& vector : top) {
    vector = hn::Set(F32(), kLowest);
  }
  std::int64_t i = 0;
  for (; i + kVectors * kLanes <= size; i += kVectors * kLanes) {
    for (std::int64_t k = 0; k < kVectors; ++k) {
      top[k] = hn::Max(top[k], load(AllLanes(), data + i + k * kLanes));
    }
  }
  float result = kLowest;
  for (const VecF32& vector : top) {
    std::array<float, kLanes> lanes;
    hn::StoreU(vector, F32(), lanes.data());
    result = std::max(result, *std::ranges::max_element(lanes));
  }
  for (; i < size; ++i) {
    result = std::max(result, data[i]);
  }
  return result;
}

// exp(x - shift) summed over a row in one pass over memory: the running maximum is the shift, and
// blocks that fit the first-level cache are summed in f32, blocks in f64. NaN where x has one.
HWY_INLINE RowSum exponential_sum(const float* x, std::int64_t size) {
  constexpr std::int64_t kBlock = 1024;
  float top = -std::numeric_limits<float>::infinity();
  RowSum row;
  for (std::int64_t first = 0; first < size; first += kBlock) {
    const float* const block = x + first;
    const std::int64_t count = std::min(kBlock, size - first);
    const float block_top = largest(block, count);
    if (block_top > top) {
      row.total *= std::exp(static_cast<double>(top) - static_cast<double>(block_top));
      top = block_top;
      row.shift = top;
    }
    const VecF32 shift = hn::Set(F32(), row.shift);
    row.total += static_cast<double>(sum(count, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch_far(x + size / 3 + (first + i) * 2 / 3);
      return keep(lanes, exp_bounded_above(hn::Sub(load(lanes, block + i), shift)));
    }));
  }
  return row;
}

// The gradient of logits; kCapped: of what they were before a cap of 1 / `inverse_cap`.
template <class T, bool kStream, bool kCapped>
HWY_INLINE void write_gradient(
    const float* x, T* gradient, std::int64_t size, float shift, float factor, float inverse_cap) {
  for_lanes(size, [&](auto lanes, std::int64_t i) HWY_ATTR {
    prefetch_far(x + size + i / 3);
    const VecF32 logit = load(lanes, x + i);
    const VecF32 shifted = hn::Sub(logit, hn::Set(F32(), shift));
    VecF32 value = hn::Mul(exp_bounded_above(shifted), hn::Set(F32(), factor));
    if constexpr (kCapped) {
      const VecF32 part = hn::Mul(logit, hn::Set(F32(), inverse_cap));
      value = hn::Mul(value, hn::NegMulAdd(part, part, hn::Set(F32(), 1.0F)));
    }
    store<kStream>(lanes, gradient + i, value);
  });
}

void cap_range(float* logits, float cap, Range range) {
  for_lanes(range.end - range.begin, [&](auto lanes, std::int64_t i) HWY_ATTR {
    float* const at = logits + range.begin + i;
    const VecF32 part = hn::Div(load(lanes, at), hn::Set(F32(), cap));
    store(lanes, at, hn::Mul(hn::Set(F32(), cap), tanh(part)));
  });
}

template <class T, bool kStream>
struct Softmax {
  // Without `sums` the rows' own.
  static void run(const SoftmaxRows& task, const RowSum* sums, const Range& rows) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      T* const gradient =
          task.gradient == nullptr ? nullptr : static_cast<T*>(task.gradient) + row * task.pitch();
      if (task.labels[row] < 0) {
        ignore_row(task, row, gradient);
      } else {
        const float* const x = task.logits + row * task.pitch();
        run_row(task, row, sums == nullptr ? exponential_sum(x, task.vocab) : sums[row], gradient);
      }
    }
  }

  static void ignore_row(const SoftmaxRows& task, std::int64_t row, T* gradient) {
    if (task.row_loss != nullptr) {
      task.row_loss[row] = 0.0;
    }
    if (gradient != nullptr) {
      std::fill_n(gradient, task.pitch(), T());
    }
  }

  static void run_row(const SoftmaxRows& task, std::int64_t row, const RowSum& sum, T* gradient) {
    const float* const x = task.logits + row * task.pitch();
    const std::int64_t label = task.labels[row] - task.first_label;
    const bool label_is_here = label >= 0 && label < task.vocab;
    // Read before the gradient, which may lie over the logits.
    const double distance =
        label_is_here ? static_cast<double>(x[label]) - static_cast<double>(sum.shift) : 0.0;
    const bool is_capped = task.softcap > 0.0F;
    const double part = is_capped && label_is_here ? double{x[label]} / double{task.softcap} : 0.0;
    if (task.row_loss != nullptr) {
      task.row_loss[row] = label_is_here ? std::log(sum.total) - distance : 0.0;
    }
    if (gradient != nullptr) {
      const double seed = task.seed;
      const auto factor = static_cast<float>(seed / sum.total);
      if (is_capped) {
        const float inverse_cap = 1.0F / task.softcap;
        write_gradient<T, kStream, true>(x, gradient, task.vocab, sum.shift, factor, inverse_cap);
      } else {
        write_gradient<T, kStream, false>(x, gradient, task.vocab, sum.shift, factor, 0.0F);
      }
      std::fill_n(gradient + task.vocab, task.padding, T());
      if (label_is_here) {
        const double at_label = seed * (std::exp(distance) / sum.total - 1.0) * (1.0 - part * part);
        store(FirstLanes{1}, gradient + label, hn::Set(F32(), static_cast<float>(at_label)));
      }
    }
  }
};

void softmax_rows(const SoftmaxRows& task, const RowSum* sums, Range rows, Form form) {
  run_as<Softmax>(form, task, sums, rows);
}

void sum_rows(const SoftmaxRows& task, RowSum* sums, Range rows) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    if (task.labels[row] >= 0) {
      sums[row] = exponential_sum(task.logits + row * task.pitch(), task.vocab);
    }
  }
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera::cpu {

namespace {

HWY_EXPORT(cap_range);
HWY_EXPORT(softmax_rows);
HWY_EXPORT(sum_rows);

Form form_of_gradient(const SoftmaxRows& task) {
  const View gradient = {.data = task.gradient,
                         .dtype = task.gradient_dtype,
                         .num_dims = 2,
                         .sizes = {task.rows, task.pitch()},
                         .strides = {task.pitch(), 1}};
  View logits = gradient;
  logits.data = const_cast<float*>(task.logits);
  const std::array<View, 1> results = {gradient};
  const std::array<View, 1> operands = {logits};
  return form_of(results, 1, operands);
}

// An exponential takes some times as long as a plain element.
Work work_of(const SoftmaxRows& task) {
  return {.count = task.rows, .elements = 4 * task.vocab};
}

}  // namespace

void cap_logits(std::span<float> logits, float softcap, ThreadTeam& team) {
  auto* const cap = HWY_DYNAMIC_DISPATCH(cap_range);
  const Work work = {.count = static_cast<std::int64_t>(logits.size())};
  parallel_ranges(team, work, [&](Range range) { cap(logits.data(), softcap, range); });
}

void softmax_cross_entropy(const SoftmaxRows& task, ThreadTeam& team) {
  for (std::int64_t row = 0; row < task.rows; ++row) {
    TESSERA_CHECK(task.labels[row] < task.vocab,
                  "label {} of row {} is outside [0, {})",
                  task.labels[row],
                  row,
                  task.vocab);
  }
  softmax_of_sums(task, nullptr, team);
}

void softmax_sums(const SoftmaxRows& task, RowSum* sums, ThreadTeam& team) {
  auto* const rows = HWY_DYNAMIC_DISPATCH(sum_rows);
  parallel_ranges(team, work_of(task), [&](Range range) { rows(task, sums, range); });
}

void softmax_of_sums(const SoftmaxRows& task, const RowSum* sums, ThreadTeam& team) {
  const Form form = form_of_gradient(task);
  TESSERA_CHECK(!form.bf16 || task.gradient != task.logits, "a bf16 gradient over f32 logits");
  auto* const rows = HWY_DYNAMIC_DISPATCH(softmax_rows);
  parallel_ranges(team, work_of(task), [&](Range range) { rows(task, sums, range, form); });
}

}  // namespace tessera::cpu

#endif  // HWY_ONCE
