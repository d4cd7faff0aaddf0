// The CUDA kernels against the ops' references: on a device, or emulated on the CPU.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/cuda/kernels/kernels_under_test.h"
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

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;

// A user's op has none.
bool has_kernel(const Sample& sample) {
  return sample.op->get_if<CustomOp>() == nullptr;
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

// Weights start with the same bits wherever they are drawn: whole and cut ones, from any index on,
// at any place.
TEST(CudaDraw, IsBitwiseTheCpus) {
  std::string reason;
  const std::unique_ptr<Backend> cuda = cuda::kernels_under_test(reason);
  if (cuda == nullptr) {
    GTEST_SKIP() << reason;
  }
  constexpr std::int64_t kBytes = 40000;
  const auto drawn =
      [&](Backend& backend, DType dtype, const Initial& initial, std::int64_t place) {
        const std::unique_ptr<Arena> arena = backend.allocate(kBytes);
        const auto element = static_cast<std::int64_t>(size_bytes(dtype));
        View view = {.data = arena->data() + place * element, .dtype = dtype, .num_dims = 1};
        view.sizes[0] = 4099;
        view.strides[0] = 1;
        backend.draw(initial, view);
        arena->to_host(0, kBytes);
        return std::vector<std::byte>(arena->host(), arena->host() + kBytes);
      };
  const std::unique_ptr<Backend> cpu = make_cpu_backend(1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::uint64_t first : {0ULL, 1ULL, 7ULL, (1ULL << 34U) - 5}) {
      for (const std::int64_t place : {0, 4, 5}) {
        for (const float cut : {0.0F, 2.0F}) {
          const Initial initial = {.key = 77, .first = first, .normal = {.std = 0.02F, .cut = cut}};
          EXPECT_EQ(drawn(*cuda, dtype, initial, place), drawn(*cpu, dtype, initial, place))
              << name(dtype) << " from " << first << " at " << place << " cut " << cut;
        }
      }
    }
    const Initial ones = {.normal = {.std = 0.0F}, .constant = 1.0F};
    EXPECT_EQ(drawn(*cuda, dtype, ones, 5), drawn(*cpu, dtype, ones, 5));
  }
}

// The norm of the gradients is the same wherever they lie: an exact sum of sums in one order.
TEST(CudaSumSquares, IsBitwiseTheCpus) {
  std::string reason;
  const std::unique_ptr<Backend> backend = cuda::kernels_under_test(reason);
  if (backend == nullptr) {
    GTEST_SKIP() << reason;
  }
  int found = 0;
  for (const Sample& sample : all_samples()) {
    if (sample.op->get_if<SumSquaresAttrs>() == nullptr) {
      continue;
    }
    ++found;
    const std::vector<HostTensor> operands = make_operands(sample);
    Outcome cuda = execute(*sample.op, operands, {.backend = backend.get()});
    Outcome cpu = execute(*sample.op, operands, {});
    EXPECT_THAT(cuda.results[0].i64(), ElementsAreArray(cpu.results[0].i64())) << sample;
  }
  EXPECT_GT(found, 10);
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
