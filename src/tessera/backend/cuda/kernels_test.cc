// The CUDA kernels against the ops' references: on a device, or emulated on the CPU.

#include <algorithm>
#include <array>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cuda/kernels_under_test.h"
#include "tessera/base/test_error.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/conformance.h"
#include "tessera/ops/testing/execute.h"

namespace tessera::conformance {

// Names the sample in messages of failed tests.
std::ostream& operator<<(std::ostream& out, const Sample& sample) {
  return out << full_name(sample);
}

namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Ops that have no CUDA kernel yet, or only for one rank.
constexpr std::array<std::string_view, 10> kWithout = {"all_gather",
                                                       "all_reduce",
                                                       "all_reduce_slices",
                                                       "amax",
                                                       "gather_slices",
                                                       "local_slice",
                                                       "quantize_float8",
                                                       "reduce_scatter",
                                                       "reduce_slices",
                                                       "scaled_matmul"};

bool has_kernel(const Sample& sample) {
  const OpInfo facts = info(*sample.op);
  return facts.view == ViewKind::kNone && sample.op->get_if<CustomOp>() == nullptr &&
         std::ranges::find(kWithout, facts.name) == kWithout.end();
}

std::vector<Sample> samples_with_kernel(bool with) {
  std::vector<Sample> chosen;
  for (Sample& sample : all_samples()) {
    if (info(*sample.op).view == ViewKind::kNone && has_kernel(sample) == with) {
      chosen.push_back(std::move(sample));
    }
  }
  return chosen;
}

class CudaKernels : public testing::TestWithParam<Sample> {
 protected:
  void SetUp() override {
    std::string reason;
    backend_ = cuda::kernels_under_test(reason);
    if (backend_ == nullptr) {
      GTEST_SKIP() << reason;
    }
  }

  Backend& backend() { return *backend_; }

 private:
  std::unique_ptr<Backend> backend_;
};

TEST_P(CudaKernels, EqualReference) {
  EXPECT_THAT(check_kernel_on(backend(), GetParam()), IsEmpty());
}

using MissingCudaKernels = CudaKernels;

TEST_P(MissingCudaKernels, SaySo) {
  const std::string error =
      error_of(ErrorCode::kUnsupported, [&] { check_kernel_on(backend(), GetParam()); });
  EXPECT_THAT(error, HasSubstr("has no CUDA kernel in this version"));
}

// A kernel cannot throw: what it found comes out when the device is done, once.
TEST(CudaFaults, AreThrownWhenTheDeviceIsDone) {
  std::string reason;
  const std::unique_ptr<Backend> backend = cuda::kernels_under_test(reason);
  if (backend == nullptr) {
    GTEST_SKIP() << reason;
  }
  std::vector<HostTensor> operands;
  for (const TensorType& type : types(DType::kF32, {"?[vocab=3, embed=4]", "i32[seq=2]"})) {
    operands.emplace_back(type);
  }
  const OpRef op = make_op(EmbeddingAttrs{});
  operands[1].i32()[1] = 7;
  const std::string error = error_of(ErrorCode::kInvalidData,
                                     [&] { execute(*op, operands, {.backend = backend.get()}); });
  EXPECT_THAT(error, HasSubstr("embedding: id 7 at index 1 is outside [0, 3)"));
  operands[1].i32()[1] = 2;
  EXPECT_THAT(execute(*op, operands, {.backend = backend.get()}).failures, IsEmpty());
}

std::string test_name(const testing::TestParamInfo<Sample>& info) {
  std::string name = full_name(info.param);
  name.replace(name.find('.'), 1, "__");
  return name;
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaKernels, testing::ValuesIn(samples_with_kernel(true)), test_name);
INSTANTIATE_TEST_SUITE_P(Ops,
                         MissingCudaKernels,
                         testing::ValuesIn(samples_with_kernel(false)),
                         test_name);

}  // namespace
}  // namespace tessera::conformance
