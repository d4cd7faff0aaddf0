#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tessera/ops/gradient_norm/gradient_norm.h"
#include "tessera/ops/gradient_norm/gradient_norm_operands.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/gradient_norm/gradient_norm_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/ops/gradient_norm/exact_sum.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

constexpr std::int64_t kBlock = 256;

using F64 = hn::ScalableTag<double>;
using VecF64 = hn::Vec<F64>;

constexpr std::int64_t kLanes64 = static_cast<std::int64_t>(hn::MaxLanes(F64()));

HWY_INLINE VecF64 load_f64(const float* data) {
  return hn::PromoteTo(F64(), hn::LoadU(hn::Rebind<float, F64>(), data));
}

HWY_INLINE VecF64 load_f64(const BFloat16* data) {
  const hn::Rebind<float, F64> f32;
  const hn::Rebind<std::uint32_t, F64> u32;
  const hn::Rebind<std::uint16_t, F64> u16;
  const auto bits = hn::LoadU(u16, reinterpret_cast<const std::uint16_t*>(data));
  return hn::PromoteTo(F64(), hn::BitCast(f32, hn::ShiftLeft<16>(hn::PromoteTo(u32, bits))));
}

// Sum of squares of one whole block in f64: partial sum l of 16 holds elements l, l + 16, ..., and
// the partial sums fold pairwise. Squares of f32 are exact in f64, so that fused and separate
// multiply-add agree, and the result is the same on every instruction set.
template <class T>
double block_sum(const T* data) {
  constexpr std::int64_t kPartials = 16;
  constexpr std::int64_t kVectors = kPartials / kLanes64;
  VecF64 partial[kVectors];
  for (VecF64& vector : partial) {
    vector = hn::Zero(F64());
  }
  for (std::int64_t i = 0; i < kBlock; i += kPartials) {
    prefetch_ahead(data + i);
    for (std::int64_t k = 0; k < kVectors; ++k) {
      const VecF64 value = load_f64(data + i + k * kLanes64);
      partial[k] = hn::MulAdd(value, value, partial[k]);
    }
  }
  std::array<double, kPartials> lanes;
  for (std::int64_t k = 0; k < kVectors; ++k) {
    hn::StoreU(partial[k], F64(), lanes.data() + k * kLanes64);
  }
  for (std::size_t half = kPartials / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) {
      lanes[lane] += lanes[lane + half];
    }
  }
  return lanes[0];
}

template <class T, bool kStream>
struct AddBlocks {
  static void run(const View& tensor, const Range& elements, const ExactSumWords& words) {
    const T* const data = tensor.as<const T>();
    std::int64_t i = elements.begin;
    for (; i + kBlock <= elements.end; i += kBlock) {
      exact_add(words, block_sum(data + i));
    }
    if (i < elements.end) {
      std::array<T, kBlock> padded = {};
      std::copy(data + i, data + elements.end, padded.begin());
      exact_add(words, block_sum(padded.data()));
    }
  }
};

void add_squares(const View& tensor, Range elements, ExactSumWords words, Form form) {
  run_as<AddBlocks>(form, tensor, elements, words);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(add_squares);

constexpr std::int64_t kSquaresBlock = 256;  // docs/design/determinism.md, D3

}  // namespace

}  // namespace cpu

// One exact sum per thread.
std::int64_t workspace_bytes(const SumSquaresAttrs& /*attrs*/,
                             cpu::Context& context,
                             Types /*in*/) {
  return context.threads() * kExactSumWords * static_cast<std::int64_t>(sizeof(std::int64_t));
}

void run(const SumSquaresAttrs& attrs, cpu::Context& context, const Views& views) {
  const SumSquaresOperands of = by_name(attrs, views);
  const auto words = ExactSumWords(cpu::flat<std::int64_t>(of.words));
  auto* const partials = reinterpret_cast<std::int64_t*>(views.workspace.data());
  std::fill_n(partials, context.threads() * kExactSumWords, 0);
  auto* const add = HWY_DYNAMIC_DISPATCH(cpu::add_squares);
  for (const View& tensor : of.tensors) {
    const std::int64_t size = tensor.rows(tensor.num_dims).width;
    const cpu::Form form = {.bf16 = cpu::form_of({&tensor, 1}, 0, {}).bf16};
    const cpu::Work work = {.count = size, .elements = 1, .cut = cpu::kSquaresBlock};
    const std::int64_t pieces = cpu::num_pieces(context.threads(), work);
    context.team().run(pieces, [&](std::int64_t piece, int member) {
      std::int64_t* const mine = partials + member * kExactSumWords;
      add(tensor,
          cpu::static_share(work, piece, pieces),
          ExactSumWords(mine, kExactSumWords),
          form);
    });
  }
  std::ranges::fill(words, 0);
  for (int thread = 0; thread < context.threads(); ++thread) {
    exact_merge(words, ConstExactSumWords(partials + thread * kExactSumWords, kExactSumWords));
  }
}

void run(const ClipScaleAttrs& attrs, cpu::Context& /*context*/, const Views& views) {
  const ClipScaleOperands of = by_name(attrs, views);
  std::array<std::int64_t, kExactSumWords> total = {};
  const ExactSumWords words(total);
  for (const View& sum : of.sums) {
    exact_merge(words, ConstExactSumWords(cpu::flat<const std::int64_t>(sum)));
  }
  const float loss = *of.loss.as<const float>();
  const float apply = *of.apply.as<const float>();
  const auto norm = static_cast<float>(std::sqrt(exact_value(words)));
  const double scale = attrs.clip > 0 ? std::min(1.0, attrs.clip / (norm + 1e-6)) : 1.0;
  *of.norm.as<float>() = norm;
  *of.scale.as<float>() = static_cast<float>(scale);
  *of.ok.as<float>() = std::isfinite(loss) && std::isfinite(norm) ? apply : 0.0F;
}

}  // namespace tessera

#endif  // HWY_ONCE
