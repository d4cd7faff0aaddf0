#include "tessera/cost/device_time.h"

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/cost/constants.h"

namespace tessera {
namespace {

// Large products at half of the peak.
constexpr DeviceCurve kCurve = {.matmul = {.bf16 = 0.5},
                                .stream = 0.5,
                                .kernel = 1.0,
                                .attention = {.forward = 0.5, .backward = 0.5}};

// 4 units, a FLOP/s each in bf16, and 8 bytes/s.
DeviceSpec small_device(const DeviceCurve& curve = kCurve) {
  return {.name = "small",
          .memory_bandwidth = 8.0,
          .peak_flops = {.f32 = 2.0, .bf16 = 4.0, .f8 = 8.0},
          .units = 4,
          .tiles = {{.rows = 4, .columns = 4}},
          .curve = curve};
}

Work product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.kind = WorkKind::kProduct,
          .m = m,
          .n = n,
          .k = k,
          .dtype = DType::kBF16,
          .row_bytes = kAlignment};
}

double seconds(const DeviceSpec& device, const Work& work) {
  return DeviceTime(device).seconds(work);
}

// A tile takes 2 * 16 * k / (0.5 FLOP/s) = 64 k seconds.
TEST(DeviceTime, OfAProductIsThatOfItsWaves) {
  const DeviceSpec device = small_device();
  EXPECT_DOUBLE_EQ(seconds(device, product(4, 4, 10)), 640.0 + 1.0);
  EXPECT_DOUBLE_EQ(seconds(device, product(8, 8, 10)), 640.0 + 1.0);
  EXPECT_DOUBLE_EQ(seconds(device, product(8, 9, 10)), 2 * 640.0 + 1.0);
  EXPECT_DOUBLE_EQ(seconds(device, product(1, 33, 10)), 3 * 640.0 + 1.0);

  Work side_by_side = product(4, 4, 10);
  side_by_side.batch = 5;
  EXPECT_DOUBLE_EQ(seconds(device, side_by_side), 2 * 640.0 + 1.0);
  Work one_by_one = product(4, 4, 10);
  one_by_one.times = 5;
  EXPECT_DOUBLE_EQ(seconds(device, one_by_one), 5 * (640.0 + 1.0));
}

TEST(DeviceTime, TakesTheTileThatIsFastest) {
  DeviceSpec device = small_device();
  device.tiles.push_back({.rows = 2, .columns = 2});
  // 8 x 9: 20 small tiles are 5 waves of a quarter each.
  EXPECT_DOUBLE_EQ(seconds(device, product(8, 9, 10)), 5 * 160.0 + 1.0);
  // Of a tile of 4 x 4 an element is used 2 times, of one of 2 x 2 once: 2/3 and 1/2 of the speed.
  DeviceCurve curve = kCurve;
  curve.tile_half = 1.0;
  device.curve = curve;
  EXPECT_DOUBLE_EQ(seconds(device, product(8, 9, 10)), 5 * 160.0 * 2.0 + 1.0);
  curve.tile_half = 8.0;  // 1/5 and 1/9
  device.curve = curve;
  EXPECT_DOUBLE_EQ(seconds(device, product(8, 9, 10)), 2 * 640.0 * 5.0 + 1.0);
}

TEST(DeviceTime, NeverGrowsWithAnotherTile) {
  DeviceCurve curve = kCurve;
  curve.tile_half = 3.0;
  constexpr std::array<std::int64_t, 5> kSides = {1, 3, 8, 50, 1000};
  const auto for_all_shapes = [&](const auto& visit) {
    for (const std::int64_t m : kSides) {
      for (const std::int64_t n : kSides) {
        visit(product(m, n, 7));
      }
    }
  };
  DeviceSpec device = small_device(curve);
  double all_gains = 0.0;
  for (const DeviceSpec::Tile tile : {DeviceSpec::Tile{.rows = 64, .columns = 64},
                                      DeviceSpec::Tile{.rows = 1, .columns = 1},
                                      DeviceSpec::Tile{.rows = 500, .columns = 2},
                                      DeviceSpec::Tile{.rows = 3, .columns = 17}}) {
    DeviceSpec richer = device;
    richer.tiles.push_back(tile);
    for_all_shapes([&](const Work& work) {
      EXPECT_LE(seconds(richer, work), seconds(device, work))
          << work.m << " x " << work.n << ", tile of " << tile.rows << " x " << tile.columns;
      all_gains += seconds(device, work) - seconds(richer, work);
    });
    device = richer;
  }
  EXPECT_GT(all_gains, 0.0);
}

TEST(DeviceTime, OfAProductGrowsByWhatItsSumsTakeMore) {
  DeviceCurve curve = kCurve;
  curve.k_half = 10.0;
  DeviceSpec device = small_device(curve);
  EXPECT_DOUBLE_EQ(seconds(device, product(4, 4, 10)), 2 * 640.0 + 1.0);
  Work uneven = product(4, 4, 10);
  uneven.row_bytes = 24;
  EXPECT_DOUBLE_EQ(seconds(device, uneven), kUnalignedTime * 2 * 640.0 + 1.0);
  uneven.dtype = DType::kF32;
  EXPECT_DOUBLE_EQ(seconds(device, uneven), 2 * 2 * 640.0 + 1.0);
  uneven.dtype = DType::kBF16;

  // Without units nothing is said of tiles: 4 * 3 sums at 2 FLOP/s.
  device.units = 0;
  device.tiles.clear();
  EXPECT_DOUBLE_EQ(seconds(device, product(4, 3, 10)), 12 * 2 * 20 / 2.0 + 1.0);
  EXPECT_DOUBLE_EQ(seconds(device, uneven), 16 * 2 * 20 / 2.0 + 1.0);
}

TEST(DeviceTime, HasAPeakForEachDtype) {
  const DeviceSpec device = small_device();
  Work codes = product(4, 4, 10);
  codes.dtype = DType::kF8E5M2;
  EXPECT_DOUBLE_EQ(seconds(device, codes), 320.0 + 1.0);
  DeviceCurve curve = kCurve;
  curve.matmul.f8 = 0.25;
  EXPECT_DOUBLE_EQ(seconds(small_device(curve), codes), 640.0 + 1.0);
  Work wide = product(4, 4, 10);
  wide.dtype = DType::kF32;
  EXPECT_DOUBLE_EQ(seconds(device, wide), 1280.0 + 1.0);
}

// m x n sums of k codes, to bf16.
Work product_of_codes(std::int64_t m, std::int64_t n, std::int64_t k) {
  Work work = product_work({.m = m,
                            .n = n,
                            .k = k,
                            .transpose_b = true,
                            .input = DType::kF8E4M3,
                            .output = DType::kBF16});
  work.bytes_read = static_cast<double>(k * (m + n));
  work.bytes_written = static_cast<double>(2 * m * n);
  return work;
}

// As the CUDA backend does it (ops/float8/scaled_matmul_cuda.cu): two kernels widen 640 codes of a
// byte to two, one multiplies, one scales 64 sums of four bytes to two.
TEST(DeviceTime, OfCodesThatADeviceDoesNotTakeIsThatOfWidenedOnes) {
  DeviceSpec device = small_device();
  const Work codes = product_of_codes(4, 16, 32);  // a wave
  EXPECT_DOUBLE_EQ(seconds(device, codes), 2 * 16 * 32 / 1.0 + 1.0);
  constexpr double kWidening = (640 + 1280) / 4.0 + 2.0;
  constexpr double kScaling = 64 * (4 + 2) / 4.0 + 1.0;
  device.peak_flops.f8 = 0.0;
  EXPECT_DOUBLE_EQ(seconds(device, codes), kWidening + 2 * 16 * 32 / 0.5 + 1.0 + kScaling);
  Work both = codes;
  both.times = 2;
  both.bytes_read *= 2.0;
  both.bytes_written *= 2.0;
  EXPECT_DOUBLE_EQ(seconds(device, both), 2.0 * seconds(device, codes));

  // CPUs widen to f32.
  device.units = 0;
  device.tiles.clear();
  EXPECT_DOUBLE_EQ(seconds(device, codes),
                   (640 + 4 * 640) / 4.0 + 2.0 + 2.0 * 64 * 32 / 1.0 + 1.0 + kScaling);
}

// 24 columns of bf16 are 48 bytes, but no whole groups of 16 codes.
TEST(DeviceTime, OfUnevenCodesIsThatOfWidenedOnes) {
  const DeviceSpec device = small_device();
  EXPECT_DOUBLE_EQ(
      seconds(device, product_of_codes(4, 24, 32)),
      (896 + 2 * 896) / 4.0 + 2.0 + 2 * (2 * 16 * 32 / 0.5) + 1.0 + 96 * (4 + 2) / 4.0 + 1.0);
  // Rows of 36 values are 72 bytes in bf16, too: 16 do not divide these either.
  EXPECT_DOUBLE_EQ(seconds(device, product_of_codes(4, 16, 36)),
                   (720 + 2 * 720) / 4.0 + 2.0 + kUnalignedTime * (2 * 16 * 36 / 0.5) + 1.0 +
                       64 * (4 + 2) / 4.0 + 1.0);
}

TEST(DeviceTime, OfMemoryIsThatOfAllBytes) {
  const Work stream = {.bytes_read = 4.0, .bytes_written = 8.0, .bytes_again = 12.0};
  EXPECT_DOUBLE_EQ(seconds(small_device(), stream), 24.0 / 4.0 + 1.0);
  Work gather = stream;
  gather.kind = WorkKind::kGather;
  EXPECT_DOUBLE_EQ(seconds(small_device(), gather), 24.0 / 4.0 / kGatherShare + 1.0);
  Work fold = stream;
  fold.kind = WorkKind::kFold;
  EXPECT_EQ(seconds(small_device(), fold), seconds(small_device(), stream));
  Work wire = stream;
  wire.kind = WorkKind::kWire;
  EXPECT_EQ(seconds(small_device(), wire), 0.0);
  EXPECT_DOUBLE_EQ(DeviceTime(small_device()).seconds(Works{stream, wire, stream}), 14.0);

  // A product whose bytes take longer than its sums.
  Work thin = product(4, 4, 1);
  thin.bytes_read = 4000.0;
  EXPECT_DOUBLE_EQ(seconds(small_device(), thin), 1000.0 + 1.0);
}

// Of 1024 tokens in tiles of 128, a causal query has half of all keys and half a tile.
TEST(DeviceTime, OfAttentionIsThatOfWholeTiles) {
  constexpr double kTokens = 1024.0;
  const Work all = {.kind = WorkKind::kAttention,
                    .m = 1024,
                    .n = 1024,
                    .k = 8,
                    .batch = 3,
                    .dtype = DType::kBF16,
                    .pairs = 3 * kTokens * kTokens};
  const DeviceSpec device = small_device();
  EXPECT_DOUBLE_EQ(seconds(device, all), 4 * 8 * all.pairs / 2.0 + 1.0);
  Work causal = all;
  causal.pairs = all.pairs / 2;
  causal.borders = 1;
  const double pairs = 3 * kTokens * (kTokens + kAttentionTile) / 2;
  EXPECT_DOUBLE_EQ(seconds(device, causal), 4 * 8 * pairs / 2.0 + 1.0);
  Work window = all;
  window.pairs = 3 * kTokens * 100;
  window.borders = 2;
  EXPECT_DOUBLE_EQ(seconds(device, window),
                   4 * 8 * 3 * kTokens * (100 + kAttentionTile) / 2.0 + 1.0);
  Work nothing = all;  // of a ring's step that is beyond the window
  nothing.pairs = 0;
  EXPECT_DOUBLE_EQ(seconds(device, nothing), 1.0);
  // Never more than all pairs.
  causal.pairs = all.pairs - 1;
  EXPECT_DOUBLE_EQ(seconds(device, causal), seconds(device, all));

  Work backward = all;
  backward.kind = WorkKind::kAttentionBackward;
  EXPECT_DOUBLE_EQ(seconds(device, backward), 10 * 8 * all.pairs / 1.0 + 1.0);
  DeviceCurve curve = kCurve;
  curve.attention.half = kTokens;
  EXPECT_DOUBLE_EQ(seconds(small_device(curve), all), 4 * 8 * all.pairs / 1.0 + 1.0);
}

TEST(DeviceTime, NeverGrowsWithTheDevice) {
  const Work work = {.kind = WorkKind::kProduct,
                     .m = 333,
                     .n = 777,
                     .k = 555,
                     .dtype = DType::kBF16,
                     .row_bytes = kAlignment,
                     .bytes_read = 1e5};
  double last = std::numeric_limits<double>::infinity();
  for (const double factor : {1.0, 1.5, 4.0, 40.0}) {
    DeviceSpec device = small_device();
    device.peak_flops.bf16 *= factor;
    device.memory_bandwidth *= factor;
    EXPECT_LT(seconds(device, work), last);
    last = seconds(device, work);
  }
}

// The message of the kInvalidConfig error that `act` ends in.
std::string refusal_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    return error.what();
  }
  return "nothing";
}

TEST(DeviceTime, SaysWhatIsNotKnown) {
  DeviceSpec device = small_device();
  EXPECT_FALSE(DeviceTime(device).is_estimate());
  device.curve.reset();
  EXPECT_TRUE(DeviceTime(device).is_estimate());
  device.peak_flops.bf16 = 0.0;
  EXPECT_EQ(refusal_of([&] { DeviceTime(device, "small.toml").seconds(product(4, 4, 4)); }),
            "small.toml: device.peak.bf16: found 0, expected the FLOP/s of \"small\", since there "
            "are products in bf16 to time");
  device.memory_bandwidth = 0.0;
  EXPECT_EQ(
      refusal_of([&] { const DeviceTime time(device); }),
      "the cluster file: device.memory_bandwidth: found 0, expected the bytes/s of \"small\", "
      "without which nothing can be timed");
  EXPECT_EQ(refusal_of([&] { const DeviceTime time(device, "small.toml"); }),
            "small.toml: device.memory_bandwidth: found 0, expected the bytes/s of \"small\", "
            "without which nothing can be timed");
}

}  // namespace
}  // namespace tessera
