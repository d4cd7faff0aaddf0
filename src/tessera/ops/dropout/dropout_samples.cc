#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/ops/dropout/dropout.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::ids;
using conformance::integers;
using conformance::OpClass;
using conformance::reals;
using conformance::types;

namespace {

constexpr std::pair<std::string_view, std::string_view> kDropoutShapes[] = {
    {"?[batch=1, embed=1]", "i32[batch=1]"},
    {"?[batch=3, seq=5, embed=7]", "i32[batch=3]"},
    {"?[batch=2, seq=4, embed=38]", "i32[batch=2]"},
    {"?[batch=2, heads=4, seq=6, keys=10]", "i32[batch=2]"}};

conformance::Sample dropout_sample(const std::string& sample_name,
                                   std::string_view x,
                                   std::string_view sequences,
                                   DType dtype,
                                   const DropoutAttrs& attrs) {
  conformance::Sample sample{
      .name = sample_name,
      .op = make_op(attrs),
      .operands = types(dtype, {sequences, x}),
      .fills = {integers(1000)},
      .op_class = attrs.rate == 0.0 ? OpClass::kExact : OpClass::kElementwise,
      .differentiable = !attrs.bias};
  if (attrs.bias) {
    sample.operands.push_back({.dtype = dtype, .dims = {sample.operands[1].dims.back()}});
    sample.op_class = dtype == DType::kBF16 ? OpClass::kRounded : OpClass::kElementwise;
    if (sample.operands[1].dims[1].bound % 2 != 0) {
      sample.unsplit = {{"b", "fuse() makes it of a cut graph: rows of padding get the bias"}};
    }
  }
  return sample;
}

}  // namespace

SampleList samples(SamplesOf<DropoutAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const double rate : {0.0, 0.1, 0.75}) {
      for (const auto& [x, sequences] : kDropoutShapes) {
        for (const bool bias : {false, true}) {
          const DropoutAttrs attrs{.rate = rate, .seed = 7, .bias = bias};
          const std::string sample_name = format("{}_{}", list.size(), name(dtype));
          list.push_back(dropout_sample(sample_name, x, sequences, dtype, attrs));
        }
      }
    }
  }
  return list;
}

void reference(const DropoutAttrs& attrs, const Views& views) {
  const auto x = reals(views.in[1]);
  const auto y = reals(views.out[0]);
  const auto sequences = ids(views.in[0]);
  const std::size_t size = x.size() / sequences.size();
  const std::uint64_t key = random_key(static_cast<std::uint64_t>(attrs.seed), "dropout");
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto block = static_cast<std::uint64_t>(i % size / 4);
    const auto words = philox(key,
                              {static_cast<std::uint32_t>(block),
                               static_cast<std::uint32_t>(block >> 32U),
                               static_cast<std::uint32_t>(sequences[i / size]),
                               0});
    const double chance = static_cast<double>(words.at(i % size % 4)) / 0x1p32;
    double u = x[i];
    if (attrs.bias) {
      const auto bias = reals(views.in[2]);
      u += bias[i % bias.size()];
    }
    y[i] = chance < attrs.rate ? 0.0 : u / (1.0 - attrs.rate);
  }
}

}  // namespace tessera
