#include "tessera/cost/device_time.h"

#include <cstdint>
#include <limits>

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
  EXPECT_DOUBLE_EQ(seconds(device, product(8, 9, 10)), 5 * 160.0 * (2.0 / 3.0) / 0.5 + 1.0);
  curve.tile_half = 8.0;  // 1/5 and 1/9
  device.curve = curve;
  EXPECT_DOUBLE_EQ(seconds(device, product(8, 9, 10)), 2 * 640.0 + 1.0);
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

TEST(DeviceTime, SaysWhatIsNotKnown) {
  DeviceSpec device = small_device();
  EXPECT_FALSE(DeviceTime(device).is_estimate());
  device.curve.reset();
  EXPECT_TRUE(DeviceTime(device).is_estimate());
  device.peak_flops.bf16 = 0.0;
  try {
    DeviceTime(device).seconds(product(4, 4, 4));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    EXPECT_STREQ(error.what(),
                 "products in bf16 cannot be timed on device \"small\", whose peak for them is not "
                 "known: give it in the cluster file");
  }
  device.memory_bandwidth = 0.0;
  try {
    const DeviceTime time(device);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    EXPECT_STREQ(error.what(),
                 "nothing can be timed on device \"small\", whose memory bandwidth is not known: "
                 "give it in the cluster file");
  }
}

}  // namespace
}  // namespace tessera
