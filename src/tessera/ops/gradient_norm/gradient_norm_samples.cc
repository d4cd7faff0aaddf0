#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/gradient_norm/gradient_norm.h"
#include "tessera/ops/gradient_norm/gradient_norm_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::constant;
using conformance::HostTensor;
using conformance::OpClass;
using conformance::prepared;
using conformance::reals;
using conformance::Sample;

namespace {

// The accumulator's layout (exact_sum.h) once more, in plain f64 arithmetic.
constexpr int kDigits = 67;
constexpr std::size_t kInfinities = 68;

int exponent_of(int digit) {
  return 32 * digit - 1074;
}

// A sum that is not negative.
void encode(double sum, std::span<std::int64_t> words) {
  std::ranges::fill(words, 0);
  if (std::isinf(sum)) {
    words[kInfinities] = 1;
    return;
  }
  for (int digit = kDigits - 1; digit >= 0; --digit) {
    const double count = std::floor(std::ldexp(sum, -exponent_of(digit)));
    words[static_cast<std::size_t>(digit)] = static_cast<std::int64_t>(count);
    sum -= std::ldexp(count, exponent_of(digit));
  }
}

double decode(std::span<const std::int64_t> words) {
  double sum = words[kInfinities] == 0 ? 0 : std::numeric_limits<double>::infinity();
  for (int digit = 0; digit < kDigits; ++digit) {
    const auto count = static_cast<double>(words[static_cast<std::size_t>(digit)]);
    sum += std::ldexp(count, exponent_of(digit));
  }
  return sum;
}

// The number that the words stand for, so that words with other carries compare equal.
HostTensor decoded(const HostTensor& words) {
  HostTensor copy = words;
  HostTensor sum({.dtype = DType::kF64, .dims = {}});
  sum.f64()[0] = decode(copy.i64());
  return sum;
}

std::span<std::int64_t> words_of(const View& view) {
  return conformance::elements_of<std::int64_t>(view, DType::kI64);
}

// Blocks of 256 elements whose sums lie in words far apart, and some of zeros.
void fill_blocks(std::uint64_t key, HostTensor& operand) {
  constexpr double kScales[] = {1.0, 1e-20, 1e20, 0.0, 1e-3};
  conformance::normal()(key, operand);
  std::size_t index = 0;
  for (double& element : operand.f64()) {
    element *= kScales[index++ / 256 % std::size(kScales)];
  }
}

// Whole blocks and a part of one, for kernels that take many at a time, also where they begin
// anywhere in memory.
Sample many_blocks(DType dtype, std::int64_t size, const conformance::Fill& fill) {
  return {.name = format("blocks_{}_{}", size, name(dtype)),
          .op = make_op(SumSquaresAttrs{}),
          .operands = conformance::types(dtype, {format("?[embed={}]", size)}),
          .fills = {fill},
          .op_class = OpClass::kReduction,
          .decode = decoded,
          .differentiable = false,
          .addends = {0},
          .sliced_dim = 0};
}

}  // namespace

SampleList samples(SamplesOf<SumSquaresAttrs>) {
  struct Case {
    std::string_view name;
    std::vector<std::string_view> operands;
  };

  const Case cases[] = {{"one", {"?[embed=1]"}},
                        {"block", {"?[embed=256]"}},
                        {"odd", {"?[seq=3, embed=67]", "?[embed=5]", "?[embed=257]"}},
                        {"even", {"?[vocab=6, embed=38]", "?[embed=4]"}},
                        {"large", {"?[vocab=33, embed=521]", "?[vocab=6, embed=2, head_dim=700]"}}};
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : cases) {
      const auto count = static_cast<std::int32_t>(c.operands.size());
      Sample sample{.name = format("{}_{}", c.name, name(dtype)),
                    .op = make_op(SumSquaresAttrs{.num_operands = count}),
                    .op_class = OpClass::kReduction,
                    .decode = decoded,
                    .differentiable = false,
                    .addends = std::vector<std::int32_t>(c.operands.size())};
      for (const std::string_view operand : c.operands) {
        sample.operands.push_back(conformance::types(dtype, {operand})[0]);
      }
      std::iota(sample.addends.begin(), sample.addends.end(), 0);
      list.push_back(std::move(sample));
    }
    list.push_back(many_blocks(dtype, 20001, conformance::normal()));
    list.push_back(many_blocks(dtype, 300301, fill_blocks));
  }
  Sample mixed = list.front();
  mixed.name = "mixed";
  mixed.op = make_op(SumSquaresAttrs{.num_operands = 2});
  mixed.operands = conformance::types(DType::kBF16, {"?[embed=300]", "f32[embed=300]"});
  mixed.addends = {0, 1};
  list.push_back(std::move(mixed));
  return list;
}

SampleList samples(SamplesOf<ClipScaleAttrs>) {
  struct Case {
    std::string_view name;
    double clip;
    double sum;
    double loss;
    double apply;
  };

  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr Case kCases[] = {{"clipped", 1.0, 123.456, 8.0, 1},
                             {"below", 1.0, 0.04, 8.0, 1},
                             {"zero", 0.5, 0.0, 0.0, 1},
                             {"tiny", 1e-3, 3e-40, 2.0, 1},
                             {"off", 0.0, 1e6, 3.5, 1},
                             {"not_applied", 1.0, 4.0, 3.5, 0},
                             {"infinite_norm", 1.0, kInfinity, 3.5, 1},
                             {"infinite_loss", 1.0, 2.0, kInfinity, 1},
                             {"nan_loss", 1.0, 2.0, kNan, 1}};
  SampleList list;
  for (const Case& c : kCases) {
    list.push_back({.name = std::string(c.name),
                    .op = make_op(ClipScaleAttrs{.clip = c.clip}),
                    .operands = conformance::types(
                        DType::kF32, {format("i64[words={}]", kExactSumWords), "f32[]", "f32[]"}),
                    .fills = {prepared(), constant(c.loss), constant(c.apply)},
                    .prepare = [c](std::span<HostTensor> in) { encode(c.sum, in[0].i64()); },
                    .differentiable = false});
  }
  const std::string words = format("i64[words={}]", kExactSumWords);
  list.push_back(
      {.name = "three_sums",
       .op = make_op(ClipScaleAttrs{.clip = 2.0, .num_sums = 3}),
       .operands = conformance::types(DType::kF32, {words, words, words, "f32[]", "f32[]"}),
       .fills = {prepared(), prepared(), prepared(), constant(3.5), constant(1)},
       .prepare =
           [](std::span<HostTensor> in) {
             encode(5.5, in[0].i64());
             encode(1e-30, in[1].i64());
             encode(77.0, in[2].i64());
           },
       .differentiable = false});
  return list;
}

void reference(const SumSquaresAttrs& attrs, const Views& views) {
  const SumSquaresOperands of = by_name(attrs, views);
  double sum = 0;
  for (const View& operand : of.tensors) {
    for (const double element : reals(operand)) {
      sum += element * element;
    }
  }
  encode(sum, words_of(of.words));
}

void reference(const ClipScaleAttrs& attrs, const Views& views) {
  const ClipScaleOperands of = by_name(attrs, views);
  double sum = 0;
  for (const View& words : of.sums) {
    sum += decode(words_of(words));
  }
  const double norm = std::sqrt(sum);
  const double loss = reals(of.loss)[0];
  const double apply = reals(of.apply)[0];
  reals(of.norm)[0] = norm;
  reals(of.scale)[0] = attrs.clip > 0 ? std::min(1.0, attrs.clip / (norm + 1e-6)) : 1.0;
  reals(of.ok)[0] = std::isfinite(loss) && std::isfinite(norm) ? apply : 0.0;
}

}  // namespace tessera
