#include "tessera/base/json.h"

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

std::string refusal(std::string_view text, const JsonOptions& options = {}) {
  return error_of(ErrorCode::kInvalidData, [&] { parse_json(text, options); });
}

TEST(Json, IsReadAsTheLibraryReadsIt) {
  const std::string text = R"({"a": [1, -2, 3.5, "x\"é"], "b": {"a": null, "c": {"a": true}}})";
  EXPECT_EQ(parse_json(text, {}), nlohmann::json::parse(text));
  EXPECT_EQ(parse_json(text, {.unique_keys = false}), nlohmann::json::parse(text));
}

TEST(Json, BrokenTextIsRefusedWithItsByte) {
  EXPECT_THAT(refusal(""), StartsWith("not JSON at byte 0: "));
  EXPECT_THAT(refusal("{"), StartsWith("not JSON at byte 1: "));
  EXPECT_THAT(refusal("{\"a\": \xFF}"), StartsWith("not JSON at byte 6: "));
  EXPECT_THAT(refusal("{} x", {.name = "a.json", .offset = 100}),
              StartsWith("a.json: not JSON at byte 103: "));
  EXPECT_EQ(refusal(std::string_view("{}\0", 3)), "not JSON at byte 2: found a zero byte");
  EXPECT_EQ(refusal(std::string(100'000, '[')),
            "not JSON at byte 64: nested deeper than 64 levels");
}

// The library tells no place of these.
TEST(Json, NumbersThatNoTypeHoldsAreRefusedWithTheirByte) {
  EXPECT_THAT(refusal("{\"a\": 1e999}"), StartsWith("not JSON at byte 10: "));
  EXPECT_THAT(refusal("[1e999, 2]"), StartsWith("not JSON at byte 5: "));
  EXPECT_THAT(refusal("1e999"), StartsWith("not JSON at byte 4: "));
}

TEST(Json, AKeyIsThereOnce) {
  EXPECT_EQ(refusal(R"({"a": 1, "b": 2, "a": 3})", {.name = "x"}),
            "x: byte 17: key 'a' appears twice");
  EXPECT_EQ(refusal(R"({"a": {"b": 1, "b" : 2}})"), "byte 15: key 'b' appears twice");
  EXPECT_EQ(refusal(R"([{"a": 1}, {"b": 1, "b": 2}])"), "byte 20: key 'b' appears twice");
  EXPECT_EQ(refusal(R"({"\"\\": 1, "\"\\": 2})"), "byte 12: key '\"\\' appears twice");
  EXPECT_THAT(refusal(R"({"a": 1, "\u0061": 2})"), HasSubstr("byte 9: key 'a' appears twice"));
  EXPECT_EQ(parse_json(R"({"a": 1, "a": 3})", {.unique_keys = false}).at("a"), 3);
}

TEST(Json, SaysWhereTheOutermostKeysAre) {
  std::map<std::string, std::size_t> offsets;
  parse_json(R"({"a": {"b": 1}, "\"c\\": [{"d": 2}]})", {.offset = 8, .key_offsets = &offsets});
  EXPECT_THAT(offsets, ElementsAre(Pair("\"c\\", 24), Pair("a", 9)));
}

}  // namespace
}  // namespace tessera
