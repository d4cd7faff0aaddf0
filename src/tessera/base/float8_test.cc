#include "tessera/base/float8.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"

namespace tessera {
namespace {

template <class Float8>
struct Format;

template <>
struct Format<Float8E4M3> {
  static constexpr const char* kName = "f8e4m3";
};

template <>
struct Format<Float8E5M2> {
  static constexpr const char* kName = "f8e5m2";
};

// Against the exact fractions of tests/golden/make_float8_goldens.py.
template <class Float8>
class Float8Test : public testing::Test {
 protected:
  static nlohmann::json golden() {
    const std::filesystem::path path =
        std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/float8/conversions.json";
    return nlohmann::json::parse(read_file(path)).at(Format<Float8>::kName);
  }

  static float number(const nlohmann::json& text) {
    return std::strtof(text.get<std::string>().c_str(), nullptr);
  }

  static unsigned code(float value) { return to_float8<Float8>(value).bits; }
};

using Formats = testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8Test, Formats);

TYPED_TEST(Float8Test, EveryCodeHasItsValueAndComesBack) {
  const nlohmann::json values = this->golden().at("values");
  ASSERT_EQ(values.size(), 256U);
  int finite = 0;
  for (unsigned bits = 0; bits < 256; ++bits) {
    const float expected = this->number(values[bits]);
    const float found = to_float(TypeParam{static_cast<std::uint8_t>(bits)});
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(found)) << bits;
      continue;
    }
    EXPECT_EQ(found, expected) << bits;
    EXPECT_EQ(std::signbit(found), std::signbit(expected)) << bits;
    if (std::isfinite(expected)) {
      EXPECT_EQ(this->code(found), bits);
      ++finite;
    }
  }
  EXPECT_EQ(finite, TypeParam::kMantissaBits == 3 ? 254 : 248);
}

TYPED_TEST(Float8Test, RoundsToNearestEvenAndSaturates) {
  const nlohmann::json pairs = this->golden().at("rounded");
  EXPECT_GT(pairs.size(), 500U);
  for (const auto& pair : pairs) {
    const float value = this->number(pair[0]);
    const unsigned expected = pair[1];
    EXPECT_EQ(this->code(value), expected) << pair[0];
    EXPECT_EQ(this->code(-value), expected | 0x80U) << "-" << pair[0];
  }
}

TYPED_TEST(Float8Test, NaNStaysNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(this->code(nan), 0x7fU);
  EXPECT_EQ(this->code(-nan), 0xffU);
  EXPECT_TRUE(std::isnan(to_float(to_float8<TypeParam>(nan))));
}

}  // namespace
}  // namespace tessera
