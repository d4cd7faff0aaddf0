#include "tessera/mesh/axes.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(Axes, PrintAndParse) {
  const AxisSizes axes = {{.name = "data.pair", .size = 2}, {.name = "data.node", .size = 4}};
  EXPECT_EQ(to_string(axes), "data.pair=2 data.node=4");
  EXPECT_EQ(parse_axes(to_string(axes)), axes);
  EXPECT_EQ(num_ranks(axes), 8);
  EXPECT_EQ(to_string(AxisSizes{}), "");
  EXPECT_EQ(parse_axes(""), AxisSizes{});
  EXPECT_EQ(num_ranks({}), 1);
}

TEST(Axes, RefuseOtherText) {
  for (const char* text : {"data", "data=", "=2", "data=0", "data=-1", "data=2,", "data 2"}) {
    try {
      parse_axes(text);
      ADD_FAILURE() << "parsed: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
    }
  }
}

}  // namespace
}  // namespace tessera
