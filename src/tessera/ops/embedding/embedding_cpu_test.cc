#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/kernel_test_util.h"
#include "tessera/base/error.h"
#include "tessera/ir/dtype.h"
#include "tessera/ir/view.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/embedding/embedding.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kVocab = 29;
constexpr std::int64_t kWidth = 300;

// Ids of which some are frequent and some absent.
TestTensor some_ids(std::size_t count) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<std::int32_t>(i * i % 13 * 2));
  }
  return TestTensor::of(ids);
}

EmbeddingBackwardAttrs backward_attrs(bool accumulate) {
  return {.vocab = kVocab, .accumulate = accumulate};
}

TEST(EmbeddingKernel, BackwardSumsRowsInOrderOfPositions) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TestTensor dy = TestTensor::normal(dtype, {200, kWidth}, 1);
    std::vector<TestTensor> in = {dy, some_ids(200)};
    TestTensor expected(DType::kF32, {kVocab, kWidth});
    for (std::size_t i = 0; i < 200 * kWidth; ++i) {
      const auto id = static_cast<std::size_t>(in[1].as<std::int32_t>()[i / kWidth]);
      expected.as<float>()[id * kWidth + i % kWidth] += dy.get(i);
    }
    for (const int threads : {1, 2, 5}) {
      const TestTensor filled = TestTensor::normal(DType::kF32, {kVocab, kWidth}, 2);
      EXPECT_EQ(run_kernel(backward_attrs(false), threads, in, {filled})[0], expected);
    }
  }
}

TEST(EmbeddingKernel, AccumulatingIsBackwardThenAdd) {
  const TestTensor accumulator = TestTensor::normal(DType::kF32, {kVocab, kWidth}, 3);
  const TestTensor empty(DType::kF32, {kVocab, kWidth});
  std::vector<TestTensor> in = {TestTensor::normal(DType::kF32, {200, kWidth}, 1), some_ids(200)};
  std::vector<TestTensor> terms = {accumulator,
                                   run_kernel(backward_attrs(false), 2, in, {empty})[0]};
  const TestTensor expected = run_kernel(AddAttrs{}, 2, terms, {empty})[0];

  TestTensor fused = accumulator;
  const std::vector<View> operands = {in[0].view(), in[1].view(), fused.view()};
  const std::vector<View> results = {fused.view()};
  run_kernel(
      backward_attrs(true), 2, std::span<const View>(operands), std::span<const View>(results));
  EXPECT_EQ(fused, expected);
}

void expect_bad_id(std::int32_t id, const std::string& message) {
  TestTensor ids = TestTensor::of({3, 4, id, 5});
  std::vector<TestTensor> in = {TestTensor::normal(DType::kF32, {kVocab, 4}, 1), ids};
  std::vector<TestTensor> in_backward = {TestTensor::normal(DType::kF32, {4, 4}, 1), ids};
  try {
    run_kernel(EmbeddingAttrs{}, 2, in, {TestTensor(DType::kF32, {4, 4})});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_THAT(error.message(), testing::HasSubstr(message));
  }
  try {
    run_kernel(backward_attrs(false), 2, in_backward, {TestTensor(DType::kF32, {kVocab, 4})});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_THAT(error.message(), testing::HasSubstr(message));
  }
}

TEST(EmbeddingErrors, IdOutsideTheTableIsNamed) {
  expect_bad_id(29, "id 29 at index 2 is outside [0, 29)");
  expect_bad_id(-1, "id -1 at index 2 is outside [0, 29)");
}

}  // namespace
}  // namespace tessera::cpu
