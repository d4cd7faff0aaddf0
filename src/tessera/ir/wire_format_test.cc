#include "tessera/ir/wire_format.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/mesh/traffic.h"

namespace tessera {
namespace {

TEST(WireBytes, CountCodesAndScales) {
  EXPECT_EQ(wire_bytes({.format = WireFormat::kF32}, 257), 1028);
  EXPECT_EQ(wire_bytes({.format = WireFormat::kBF16}, 257), 514);
  EXPECT_EQ(wire_bytes({.format = WireFormat::kInt8}, 512), 2 * 260);
  EXPECT_EQ(wire_bytes({.format = WireFormat::kInt4}, 512), 2 * 132);
  EXPECT_EQ(wire_bytes({.format = WireFormat::kInt8, .block = 64}, 256), 4 * 68);
  EXPECT_EQ(wire_bytes({.format = WireFormat::kInt4, .block = 2}, 256), 128 * 5);
  EXPECT_EQ(wire_bytes({.format = WireFormat::kInt8}, 1), 260);
  EXPECT_EQ(wire_bytes({.format = WireFormat::kInt4}, 0), 0);
}

TEST(WireBytes, RefuseBlocksThatDoNotFillSlices) {
  for (const std::int64_t block : {0, 1, 48, 512, -256}) {
    EXPECT_EQ(
        error_of(ErrorCode::kInvalidArgument,
                 [&] { wire_bytes({.format = WireFormat::kInt8, .block = block}, 256); }),
        format("blocks of {} elements on the wire, expected a power of two from 2 to 256", block));
  }
}

TEST(WireFormats, ToTextAndBack) {
  const WireFormats all = {
      WireFormat::kF32, WireFormat::kBF16, WireFormat::kInt8, WireFormat::kInt4};
  EXPECT_EQ(to_string(all), "f32 bf16 int8 int4");
  EXPECT_EQ(parse_wire_formats("f32 bf16 int8 int4"), all);
  EXPECT_EQ(parse_wire_formats(""), WireFormats{});
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [] { parse_wire_formats("int8 int2"); }),
            "\"int2\" is no wire format, expected f32, bf16, int8 or int4, for all levels or for "
            "each with spaces between (in the wire formats \"int8 int2\")");
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [] { parse_wire_formats("int8,int4"); }),
            "\"int8,int4\" is no wire format, expected f32, bf16, int8 or int4, for all levels or "
            "for each with spaces between (in the wire formats \"int8,int4\")");
}

TEST(WireFormats, OneForEachLevelOrForAll) {
  EXPECT_EQ(formats_of_levels({}, 3), WireFormats{});
  EXPECT_EQ(formats_of_levels({WireFormat::kInt4}, 2), WireFormats(2, WireFormat::kInt4));
  const WireFormats mixed = {WireFormat::kInt8, WireFormat::kInt4};
  EXPECT_EQ(formats_of_levels(mixed, 2), mixed);
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { formats_of_levels(mixed, 3); }),
            "2 wire formats (int8 int4) for 3 levels, expected one for each or one for all");
}

TEST(Traffic, OfAxesAddsUpOnTheirLevels) {
  const Mesh mesh = make_mesh(test_cluster({4, 3}), {.data = 6, .tensor = 2});
  const Traffic levels =
      by_level({{"tensor", {0, 5, 0}}, {"data.pair", {7, 0, 1}}, {"data.node", {3, 0, 1}}}, mesh);
  EXPECT_EQ(levels, (Traffic{{"pair", {7, 5, 1}}, {"node", {3, 0, 1}}}));
  EXPECT_EQ(
      error_of(ErrorCode::kInvalidArgument, [&] { by_level({{"data.site", {1, 0, 0}}}, mesh); }),
      "traffic along data.site, an axis that the mesh lacks");
}

}  // namespace
}  // namespace tessera
