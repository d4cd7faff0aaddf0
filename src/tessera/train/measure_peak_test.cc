#include "tessera/train/measure_peak.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"

namespace tessera {
namespace {

// Between a machine of the eighties and one that does not exist.
TEST(MeasurePeak, IsARate) {
  const auto backend = make_cpu_backend(1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const double peak = measure_peak(*backend, dtype);
    EXPECT_TRUE(std::isfinite(peak));
    EXPECT_GT(peak, 1e6);
    EXPECT_LT(peak, 1e15);
  }
}

}  // namespace
}  // namespace tessera
