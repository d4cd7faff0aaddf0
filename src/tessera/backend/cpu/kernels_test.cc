// What holds for all kernels at sizes that take several threads: the bits do not depend on threads,
// instruction set, places of results, or strides.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "tessera/backend/cpu/kernel_test_util.h"
#include "tessera/ir/dtype.h"
#include "tessera/ir/view.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/gradient_norm/gradient_norm.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/swiglu/swiglu.h"

namespace tessera::cpu {

namespace {

using Tensors = std::vector<TestTensor>;
using Place = std::pair<std::size_t, std::size_t>;  // result, operand whose memory it takes

struct Case {
  std::string name;
  Tensors in;
  Tensors results;
  std::vector<Place> places = {};
  std::function<void(int threads, std::span<const View> in, std::span<const View> out)> run;
};

std::ostream& operator<<(std::ostream& out, const Case& item) {
  return out << item.name;
}

template <class Attrs>
Case make_case(const std::string& name,
               const Attrs& attrs,
               const Tensors& in,
               const Tensors& results,
               const std::vector<Place>& places = {}) {
  return {.name = name,
          .in = in,
          .results = results,
          .places = places,
          .run = [attrs](int threads, std::span<const View> operands, std::span<const View> out) {
            run_kernel(attrs, threads, operands, out);
          }};
}

// 331 rows of 401: many blocks of rows, widths that are no multiple of any vector.
constexpr std::int64_t kRows = 331;
constexpr std::int64_t kWidth = 401;

TestTensor rows(DType dtype, std::uint64_t key) {
  return TestTensor::normal(dtype, {kRows, kWidth}, key);
}

TestTensor column(DType dtype, std::uint64_t key) {
  return TestTensor::normal(dtype, {kWidth}, key);
}

TestTensor per_row(std::uint64_t key) {
  return TestTensor::normal(DType::kF32, {kRows}, key);
}

TestTensor empty_rows(DType dtype) {
  return {dtype, {kRows, kWidth}};
}

const TestTensor kColumnSums(DType::kF32, {kWidth});
const TestTensor kPerRow(DType::kF32, {kRows});

void add_norms(DType t, const std::string& suffix, std::vector<Case>& cases) {
  cases.push_back(make_case("rms_norm_" + suffix,
                            RmsNormAttrs{},
                            {rows(t, 1), column(t, 2)},
                            {empty_rows(t), kPerRow},
                            {{0, 0}}));
  cases.push_back(make_case("rms_norm_residual_" + suffix,
                            RmsNormAttrs{.residual = true},
                            {rows(t, 1), rows(t, 3), column(t, 2)},
                            {empty_rows(t), kPerRow, empty_rows(t)},
                            {{2, 0}, {2, 1}, {0, 0}, {0, 1}}));
  cases.push_back(make_case("rms_norm_backward_" + suffix,
                            RmsNormBackwardAttrs{},
                            {rows(t, 1), rows(t, 3), column(t, 2), per_row(4)},
                            {empty_rows(t)},
                            {{0, 0}, {0, 1}}));
  cases.push_back(make_case("rms_norm_backward_fused_" + suffix,
                            RmsNormBackwardAttrs{.residual = true, .weight_gradient = true},
                            {rows(t, 1), rows(t, 3), column(t, 2), per_row(4), rows(t, 5)},
                            {empty_rows(t), kColumnSums},
                            {{0, 0}, {0, 1}, {0, 4}}));
  cases.push_back(make_case("rms_norm_weight_gradient_" + suffix,
                            RmsNormWeightGradientAttrs{},
                            {rows(t, 1), rows(t, 3), per_row(4)},
                            {kColumnSums}));
  cases.push_back(make_case("layer_norm_" + suffix,
                            LayerNormAttrs{},
                            {rows(t, 1), column(t, 2), column(t, 3)},
                            {empty_rows(t), kPerRow, kPerRow},
                            {{0, 0}}));
  cases.push_back(
      make_case("layer_norm_backward_" + suffix,
                LayerNormBackwardAttrs{.residual = true},
                {rows(t, 1), rows(t, 3), column(t, 2), per_row(4), per_row(6), rows(t, 5)},
                {empty_rows(t)},
                {{0, 0}, {0, 1}, {0, 5}}));
  cases.push_back(make_case("layer_norm_weight_gradient_" + suffix,
                            LayerNormWeightGradientAttrs{},
                            {rows(t, 1), rows(t, 3), per_row(4), per_row(6)},
                            {kColumnSums, kColumnSums}));
}

void add_elementwise(DType t, const std::string& suffix, std::vector<Case>& cases) {
  const TestTensor a = rows(t, 1);
  const TestTensor b = rows(t, 2);
  const TestTensor c = rows(t, 3);
  const TestTensor y = empty_rows(t);
  cases.push_back(make_case("add_" + suffix, AddAttrs{}, {a, b}, {y}, {{0, 0}, {0, 1}}));
  cases.push_back(make_case("mul_" + suffix, MulAttrs{}, {a, b}, {y}, {{0, 0}, {0, 1}}));
  cases.push_back(
      make_case("scale_" + suffix, ScaleAttrs{}, {a, TestTensor::scalar(0.3F)}, {y}, {{0, 0}}));
  cases.push_back(make_case("swiglu_" + suffix, SwigluAttrs{}, {a, b}, {y}, {{0, 0}, {0, 1}}));
  cases.push_back(make_case("swiglu_backward_" + suffix,
                            SwigluBackwardAttrs{},
                            {a, b, c},
                            {y, y},
                            {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}}));
  cases.push_back(make_case("gelu_" + suffix, GeluAttrs{}, {a}, {y}, {{0, 0}}));
  cases.push_back(
      make_case("gelu_backward_" + suffix, GeluBackwardAttrs{}, {a, b}, {y}, {{0, 0}, {0, 1}}));
  const std::vector<std::int64_t> heads = {2, 101, 7, 38};
  cases.push_back(
      make_case("rope_" + suffix,
                RopeAttrs{},
                {TestTensor::normal(t, heads, 1), TestTensor::normal(DType::kF32, {2, 101, 38}, 2)},
                {TestTensor(t, heads)},
                {{0, 0}}));
  cases.push_back(make_case("sum_squares_" + suffix,
                            SumSquaresAttrs{.num_operands = 2},
                            {a, b},
                            {TestTensor(DType::kI64, {kExactSumWords})}));
}

// What runs while a text is generated: products of few rows, attention of one position.
void add_generation(DType t, const std::string& suffix, std::vector<Case>& cases) {
  cases.push_back(make_case("linear_" + suffix,
                            MatmulAttrs{.transpose_b = true, .dtype = t},
                            {TestTensor::normal(t, {3, kWidth}, 1), rows(t, 2)},
                            {TestTensor(t, {3, kRows})}));
  const TestTensor keys = TestTensor::normal(t, {2, 300, 2, 38}, 2);
  const TestTensor query_ids(DType::kI32, {2, 1});
  const TestTensor key_ids(DType::kI32, {2, 300});
  cases.push_back(make_case(
      "attention_" + suffix,
      AttentionAttrs{.scale = 0.2},
      {TestTensor::normal(t, {2, 1, 6, 38}, 1), keys, keys, query_ids, key_ids, query_ids, key_ids},
      {TestTensor(t, {2, 1, 6, 38}), TestTensor(DType::kF32, {2, 6, 1})}));
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_norms(DType::kF32, "f32", cases);
  add_norms(DType::kBF16, "bf16", cases);
  add_elementwise(DType::kF32, "f32", cases);
  add_elementwise(DType::kBF16, "bf16", cases);
  add_generation(DType::kF32, "f32", cases);
  add_generation(DType::kBF16, "bf16", cases);
  const TestTensor f32 = rows(DType::kF32, 1);
  const TestTensor bf16 = rows(DType::kBF16, 2);
  cases.push_back(
      make_case("add_f32_bf16", AddAttrs{}, {f32, bf16}, {empty_rows(DType::kF32)}, {{0, 0}}));
  cases.push_back(make_case(
      "cast_f32_bf16", CastAttrs{.dtype = DType::kBF16}, {f32}, {empty_rows(DType::kBF16)}));
  cases.push_back(make_case(
      "cast_bf16_f32", CastAttrs{.dtype = DType::kF32}, {bf16}, {empty_rows(DType::kF32)}));
  TestTensor positions(DType::kI32, {kRows});
  for (std::size_t i = 0; i < static_cast<std::size_t>(kRows); ++i) {
    positions.as<std::int32_t>()[i] = static_cast<std::int32_t>(97 * i);
  }
  cases.push_back(make_case("rope_table",
                            RopeTableAttrs{.head_dim = 64},
                            {positions},
                            {TestTensor(DType::kF32, {kRows, 64})}));
  return cases;
}

std::vector<View> views_of(Tensors& tensors) {
  std::vector<View> views;
  for (TestTensor& tensor : tensors) {
    views.push_back(tensor.view());
  }
  return views;
}

Tensors run_case(const Case& item, int threads) {
  Tensors in = item.in;
  Tensors results = item.results;
  item.run(threads, views_of(in), views_of(results));
  return results;
}

class Kernel : public testing::TestWithParam<Case> {};

TEST_P(Kernel, BitsDoNotDependOnThreads) {
  const Tensors expected = run_case(GetParam(), 1);
  for (const int threads : {2, 3, 7}) {
    EXPECT_EQ(run_case(GetParam(), threads), expected) << threads << " threads";
  }
}

// Vector sets agree; the scalar fallback has no fused multiply-add and may differ.
TEST_P(Kernel, BitsDoNotDependOnTheInstructionSet) {
  const Tensors expected = run_case(GetParam(), 2);
  const std::int64_t supported = hwy::SupportedTargets();
  if ((supported & HWY_AVX2) != 0) {
    hwy::GetChosenTarget().Update(HWY_AVX2);
    EXPECT_EQ(run_case(GetParam(), 2), expected);
    hwy::GetChosenTarget().Update(supported);
  }
}

TEST_P(Kernel, ResultsMayLieOverTheirOperands) {
  const Tensors expected = run_case(GetParam(), 2);
  for (const auto& [result, operand] : GetParam().places) {
    Tensors in = GetParam().in;
    Tensors results = GetParam().results;
    std::vector<View> out = views_of(results);
    const std::vector<View> operands = views_of(in);
    out[result].data = operands[operand].data;
    GetParam().run(2, operands, out);
    results[result] = in[operand];
    EXPECT_EQ(results, expected) << "result " << result << " over operand " << operand;
  }
}

// A tensor as a slice of wider rows (of its last `inner` dims), with a pattern between the slices.
class Slice {
 public:
  Slice(TestTensor tensor, std::int32_t inner) : packed_(std::move(tensor)) {
    const View packed = packed_.view();
    const View::Rows rows = packed.rows(inner);
    const auto element_bytes = static_cast<std::int64_t>(size_bytes(packed.dtype));
    count_ = rows.count;
    row_bytes_ = rows.width * element_bytes;
    stride_bytes_ = row_bytes_ + kGap * element_bytes;
    memory_.assign(static_cast<std::size_t>(count_ * stride_bytes_), kPattern);
    for (std::int64_t row = 0; row < count_; ++row) {
      std::copy_n(packed.as<std::byte>() + row * row_bytes_, row_bytes_, row_at(row));
    }
    view_ = packed;
    view_.data = memory_.data();
    std::int64_t stride = rows.width + kGap;
    for (std::int32_t dim = view_.num_dims - inner - 1; dim >= 0; --dim) {
      view_.strides[static_cast<std::size_t>(dim)] = stride;
      stride *= view_.sizes[static_cast<std::size_t>(dim)];
    }
  }

  View view() const { return view_; }

  // The elements, and whether nothing else was written.
  TestTensor packed() {
    for (std::int64_t row = 0; row < count_; ++row) {
      std::copy_n(row_at(row), row_bytes_, packed_.view().as<std::byte>() + row * row_bytes_);
    }
    return packed_;
  }

  bool gaps_are_intact() {
    for (std::int64_t row = 0; row < count_; ++row) {
      const std::byte* const gap = row_at(row) + row_bytes_;
      const std::byte* const end = row_at(row) + stride_bytes_;
      if (!std::all_of(gap, end, [](std::byte byte) { return byte == kPattern; })) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::int64_t kGap = 5;
  static constexpr std::byte kPattern{0x5a};

  std::byte* row_at(std::int64_t row) { return memory_.data() + row * stride_bytes_; }

  TestTensor packed_;
  std::vector<std::byte> memory_;
  View view_;
  std::int64_t count_ = 0;
  std::int64_t row_bytes_ = 0;
  std::int64_t stride_bytes_ = 0;
};

class SlicedKernel : public testing::TestWithParam<Case> {};

TEST_P(SlicedKernel, TakesSlicesOfWiderRows) {
  const Tensors expected = run_case(GetParam(), 2);
  Tensors in = GetParam().in;
  const std::int32_t inner = in[0].view().num_dims == 4 ? 2 : 1;  // rope: heads and head_dim
  std::vector<Slice> operands;
  std::vector<Slice> results;
  std::vector<View> in_views;
  std::vector<View> out_views;
  for (const TestTensor& tensor : in) {
    const bool whole = tensor.type().dims != in[0].type().dims;
    operands.emplace_back(tensor,
                          whole ? static_cast<std::int32_t>(tensor.type().num_dims()) : inner);
  }
  for (const TestTensor& tensor : GetParam().results) {
    const bool whole = tensor.type().dims != in[0].type().dims;
    results.emplace_back(tensor,
                         whole ? static_cast<std::int32_t>(tensor.type().num_dims()) : inner);
  }
  std::ranges::transform(operands, std::back_inserter(in_views), &Slice::view);
  std::ranges::transform(results, std::back_inserter(out_views), &Slice::view);
  GetParam().run(2, in_views, out_views);
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].packed(), expected[i]) << "result " << i;
    EXPECT_TRUE(results[i].gaps_are_intact()) << "result " << i;
  }
}

std::vector<Case> sliceable_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& item) {
    // Gradients are summed whole, and positions have no rows.
    return item.name.starts_with("sum_squares") || item.name.starts_with("rope_table");
  });
  return cases;
}

TEST(ThinProduct, ARowDoesNotDependOnTheOthers) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const MatmulAttrs attrs{.transpose_b = true};
    const TestTensor a = TestTensor::normal(dtype, {4, kWidth}, 1);
    Tensors in = {a, rows(dtype, 2)};
    const TestTensor whole = run_kernel(attrs, 2, in, {TestTensor(DType::kF32, {4, kRows})})[0];
    for (std::size_t row = 0; row < 4; ++row) {
      in[0] = TestTensor(dtype, {1, kWidth});
      for (std::size_t i = 0; i < static_cast<std::size_t>(kWidth); ++i) {
        in[0].set(i, a.get(row * static_cast<std::size_t>(kWidth) + i));
      }
      const TestTensor alone = run_kernel(attrs, 2, in, {TestTensor(DType::kF32, {1, kRows})})[0];
      for (std::size_t i = 0; i < static_cast<std::size_t>(kRows); ++i) {
        ASSERT_EQ(alone.get(i), whole.get(row * static_cast<std::size_t>(kRows) + i));
      }
    }
  }
}

constexpr auto kCaseName = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(All, Kernel, testing::ValuesIn(all_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(All, SlicedKernel, testing::ValuesIn(sliceable_cases()), kCaseName);

}  // namespace

}  // namespace tessera::cpu
