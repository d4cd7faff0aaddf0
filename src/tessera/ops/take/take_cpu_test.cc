#include <cstddef>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/kernel_test_util.h"
#include "tessera/base/error.h"
#include "tessera/ir/dtype.h"
#include "tessera/ops/take/take.h"

namespace tessera::cpu {
namespace {

TEST(TakeKernel, CopiesOneRowOfEachSequence) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<TestTensor> in = {TestTensor::normal(dtype, {3, 5, 7}, 1),
                                  TestTensor::of({4, 0, 2})};
    const TestTensor y = run_kernel(TakeAttrs{}, 2, in, {TestTensor(dtype, {3, 1, 7})})[0];
    const std::vector<std::size_t> index = {4, 0, 2};
    for (std::size_t i = 0; i < 21; ++i) {
      EXPECT_EQ(y.get(i), in[0].get((i / 7 * 5 + index[i / 7]) * 7 + i % 7));
    }
  }
}

TEST(TakeErrors, PositionOutsideTheSequenceIsNamed) {
  std::vector<TestTensor> in = {TestTensor::normal(DType::kF32, {3, 5, 7}, 1),
                                TestTensor::of({4, 5, 2})};
  try {
    run_kernel(TakeAttrs{}, 1, in, {TestTensor(DType::kF32, {3, 1, 7})});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_THAT(error.message(), testing::HasSubstr("position 5 of sequence 1 is outside [0, 5)"));
  }
}

}  // namespace
}  // namespace tessera::cpu
