// Times that others published, beside those of configs/clusters: whether the forms of
// cost/device_time.cc are those of real devices. Sources, all of bf16:
// attention and norms: NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results/
//   h200_919_only_cudnn and benchmark/norms/results/h200, at 3929da2ef4, cuDNN on an H200;
// products: stas00/ml-engineering, compute/accelerator/README.md at 744d01e18b, the best of many
//   shapes, which tell shares alone, since each fills its waves.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/cost/constants.h"
#include "tessera/cost/device_time.h"
#include "tessera/mesh/cluster.h"
#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

struct Point {
  Works works;
  double seconds = 0.0;
};

DeviceSpec device_of(std::string_view cluster) {
  return load_cluster(std::filesystem::path(TESSERA_SOURCE_DIR) / "configs" / "clusters" / cluster)
      .device;
}

DeviceTime time_of(std::string_view cluster) {
  return DeviceTime(device_of(cluster));
}

// Mean of the relative errors of what is said of points, if those were `seconds`.
double mean_error(const DeviceTime& time,
                  const std::vector<Point>& points,
                  const std::vector<double>& seconds) {
  double sum = 0.0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    sum += std::abs(time.seconds(points[i].works) / seconds[i] - 1.0);
  }
  return sum / static_cast<double>(points.size());
}

// The mean error is at most `limit`, and far more where the points are mixed up: they tell the
// forms from a constant.
void expect_close(const DeviceTime& time, const std::vector<Point>& points, double limit) {
  std::vector<double> seconds;
  for (const Point& point : points) {
    seconds.push_back(point.seconds);
  }
  EXPECT_LE(mean_error(time, points, seconds), limit);
  std::ranges::rotate(seconds, seconds.begin() + 1);
  EXPECT_GE(mean_error(time, points, seconds), 0.3);
}

TensorType tensor(std::string_view name, std::int64_t rows, std::int64_t width) {
  return {.dtype = DType::kBF16,
          .dims = {{.name = std::string(name), .bound = rows}, {.name = "embed", .bound = width}}};
}

TEST(PublishedPoints, AttentionOfAnH200) {
  struct Row {
    std::int64_t tokens;
    bool causal;
    double forward_ms;
    double backward_ms;
  };

  // One sequence, 64 heads of 128 channels, 8 of keys and values.
  constexpr Row kRows[] = {{32768, true, 25.566, 75.688},
                           {32768, false, 50.769, 153.841},
                           {16384, true, 6.531, 19.002},
                           {16384, false, 12.524, 35.947},
                           {8192, true, 1.708, 5.083},
                           {8192, false, 3.182, 9.262},
                           {4096, true, 0.465, 1.450},
                           {4096, false, 0.819, 2.453},
                           {2048, true, 0.142, 0.464},
                           {2048, false, 0.217, 0.681}};
  std::vector<Point> forward;
  std::vector<Point> backward;
  for (const Row& row : kRows) {
    const auto heads = [&](std::int64_t count) {
      return TensorType{.dtype = DType::kBF16,
                        .dims = {{.name = "batch", .bound = 1},
                                 {.name = "seq", .bound = row.tokens},
                                 {.name = "heads", .bound = count},
                                 {.name = "head_dim", .bound = 128}}};
    };
    const TensorType ids = {
        .dtype = DType::kI32,
        .dims = {{.name = "batch", .bound = 1}, {.name = "seq", .bound = row.tokens}}};
    const TensorType lse = {.dims = {{.name = "batch", .bound = 1},
                                     {.name = "heads", .bound = 64},
                                     {.name = "seq", .bound = row.tokens}}};
    const TensorType q = heads(64);
    const TensorType k = heads(8);
    forward.push_back({work(*make_op(AttentionAttrs{.causal = row.causal}),
                            TensorTypes{q, k, k, ids, ids, ids, ids}),
                       row.forward_ms * 1e-3});
    backward.push_back({work(*make_op(AttentionBackwardAttrs{
                                 .causal = row.causal, .whole_rows = true, .any_order = true}),
                             TensorTypes{q, q, k, k, q, lse, ids, ids, ids, ids}),
                        row.backward_ms * 1e-3});
  }
  const DeviceTime time = time_of("h200.toml");
  expect_close(time, forward, 0.03);
  expect_close(time, backward, 0.04);
}

// Without those of rows of 16,384 elements, which our kernels read twice and cuDNN's do not.
TEST(PublishedPoints, NormsOfAnH200) {
  struct Row {
    std::int64_t rows;
    std::int64_t width;
    double forward_ms;
    double backward_ms;
  };

  constexpr Row kRows[] = {{16384, 4096, 0.072, 0.106},
                           {8192, 8192, 0.071, 0.114},
                           {8192, 5120, 0.045, 0.069},
                           {8192, 4096, 0.035, 0.058},
                           {4096, 6144, 0.029, 0.049},
                           {4096, 8192, 0.041, 0.061},
                           {2048, 4096, 0.010, 0.018},
                           {131072, 128, 0.021, 0.035},
                           {4096, 2048, 0.010, 0.019}};
  std::vector<Point> forward;
  std::vector<Point> backward;
  for (const Row& row : kRows) {
    const TensorType x = tensor("seq", row.rows, row.width);
    const TensorType gain = {.dtype = DType::kBF16,
                             .dims = {{.name = "embed", .bound = row.width}}};
    const TensorType rstd = {.dims = {{.name = "seq", .bound = row.rows}}};
    forward.push_back(
        {work(*make_op(RmsNormAttrs{}), TensorTypes{x, gain}), row.forward_ms * 1e-3});
    backward.push_back({work(*make_op(RmsNormBackwardAttrs{.weight_gradient = true}),
                             TensorTypes{x, x, gain, rstd}),
                        row.backward_ms * 1e-3});
  }
  const DeviceTime time = time_of("h200.toml");
  expect_close(time, forward, 0.05);
  expect_close(time, backward, 0.06);
}

Works large_product(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
  return {product_work(
      {.m = m, .n = n, .k = k, .transpose_b = true, .input = dtype, .output = DType::kBF16})};
}

void expect_burst(const DeviceTime& time, const Works& product, double tflops) {
  const double longer = time.seconds(product) / (flop(product[0]) / (tflops * 1e12));
  EXPECT_GE(longer, 1.0);
  EXPECT_LE(longer, 1.5);
}

// The best of many shapes are short bursts: training, to which the shares are fitted, sustains at
// most a third less.
TEST(PublishedPoints, BestProductsOfAnH100AndAnH200AreBursts) {
  constexpr DType kWide = DType::kBF16;
  constexpr DType kNarrow = DType::kF8E4M3;
  const DeviceTime h100 = time_of("h100-dgx.toml");
  expect_burst(h100, large_product(2048, 2048, 13312, kWide), 794.5);
  expect_burst(h100, large_product(1024, 9216, 14336, kNarrow), 1402.6);
  const DeviceTime h200 = time_of("h200.toml");
  // Measured on a lent one; nothing is fitted to it.
  expect_burst(h200, large_product(8192, 8192, 8192, kWide), 790.0);
  expect_burst(h200, large_product(1280, 4096, 12032, kNarrow), 1453.4);
}

// Waves and tiles as NVIDIA describes them (Matrix Multiplication Background User's Guide, chapter
// "Dimension Quantization Effects"). With tiles of 256 x 128 the 108 units of an A100 compute 2304
// x 1536 sums at once, since these are 9 x 12 tiles; further columns take another wave, however few
// they are.
TEST(PublishedPoints, WavesOfAnA100) {
  DeviceSpec device = device_of("a100-80g-selene.toml");
  const std::vector<DeviceSpec::Tile> all_tiles = device.tiles;
  device.tiles = {{.rows = 256, .columns = 128}};
  device.curve = kUsualCurve;
  device.curve->kernel = 0.0;
  const auto seconds = [&](std::int64_t n) {
    return DeviceTime(device).seconds(large_product(2304, n, 4096, DType::kBF16));
  };
  const double wave = seconds(1536);
  EXPECT_DOUBLE_EQ(seconds(8), wave);
  EXPECT_DOUBLE_EQ(seconds(1544), 2.0 * wave);
  EXPECT_DOUBLE_EQ(seconds(3072), 2.0 * wave);
  EXPECT_DOUBLE_EQ(seconds(3080), 3.0 * wave);
  // With all tiles there are kernels for, small products take less, and none more.
  device.tiles = all_tiles;
  EXPECT_LT(seconds(8), 0.5 * wave);
  EXPECT_LT(seconds(1544), 1.6 * wave);
}

// What stands in for a curve is that of the file that it names.
TEST(PublishedPoints, TheUsualCurveIsThatOfAnH200) {
  EXPECT_EQ(device_of("h200.toml").curve, kUsualCurve);
}

}  // namespace
}  // namespace tessera
