#include "tessera/base/json.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
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
  EXPECT_THAT(
      refusal("{"),
      StartsWith("not JSON at byte 1: line 1, column 2: syntax error while parsing object key"));
  EXPECT_THAT(refusal(R"({"a": NaN})"),
              StartsWith("not JSON at byte 6: line 1, column 7: syntax error while parsing value - "
                         "invalid literal"));
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
  EXPECT_THAT(refusal("1e999"), StartsWith("not JSON at byte 4: number overflow parsing '1e999'"));
}

// Quotes that are put around them move no place.
TEST(Json, NumbersOfPythonAreTakenAsTheirNames) {
  const JsonOptions options = {.python_numbers = true};
  const auto json = parse_json(
      R"({"a": NaN, "b": [Infinity, -Infinity], "NaN": "NaN \"NaN\" \\", "c": -1})", options);
  EXPECT_EQ(json, nlohmann::json::parse(R"({"a": "NaN", "b": ["Infinity", "-Infinity"],
                                      "NaN": "NaN \"NaN\" \\", "c": -1})"));
  EXPECT_EQ(refusal(R"({"a": NaN, "b": -Infinity, "a": 3})", options),
            "byte 27: key 'a' appears twice");
  EXPECT_THAT(refusal("[NaN, NaN, -Infinity, nan]", options), StartsWith("not JSON at byte 23: "));
  EXPECT_THAT(refusal("[NaN, 1e999, 2]", options), StartsWith("not JSON at byte 10: "));
  EXPECT_THAT(refusal("[NaN, \"\\", options), StartsWith("not JSON at byte 8: "));
  EXPECT_THAT(refusal("{\"a\": NaN, NaN : 1}", options), StartsWith("not JSON at byte 11: "));
}

TEST(Json, WholeNumbersAreWrittenWithAPointToo) {
  const auto whole = [](std::string_view text) { return whole_number(parse_json(text, {})); };
  EXPECT_EQ(whole("4096"), 4096);
  EXPECT_EQ(whole("4096.0"), 4096);
  EXPECT_EQ(whole("-2e3"), -2000);
  EXPECT_EQ(whole("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(whole("-9223372036854775808.0"), INT64_MIN);
  for (const char* const none :
       {"1.5", "1e-9", "9223372036854775808", "9223372036854775808.0", "\"2\"", "true", "null"}) {
    EXPECT_EQ(whole(none), std::nullopt) << none;
  }
  EXPECT_EQ(whole_number(std::nan("")), std::nullopt);
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

TEST(Json, SaysWhereAValueIs) {
  const std::string text =
      R"( {"a" : {"b":1, "c/d~": [ 1.5e3,"]\"x",[ ], {"e":null}]}, "": true, "\"": {}, "a":{"b" :2},)"
      "\n \"\\u00e9\" :\t3}";
  const nlohmann::json json = parse_json(text, {.unique_keys = false});
  const auto at = [&](std::string_view part) { return text.find(part); };
  const auto last_at = [&](std::string_view part) { return text.rfind(part); };
  EXPECT_EQ(find_json(text, ""), 1U);
  EXPECT_EQ(find_json(text, "/"), at(R"("": true)"));
  EXPECT_EQ(find_json(text, "/\""), at(R"("\"": {})"));
  EXPECT_EQ(find_json(text, "/a"), last_at(R"("a":)")) << "as the library has it, the last";
  EXPECT_EQ(find_json(text, "/a/b"), last_at(R"("b" :2)"));
  EXPECT_EQ(find_json(text, "/\u00e9"), at(R"("\u00e9")"));
  EXPECT_EQ(find_json(text, "/a/c"), std::nullopt);
  EXPECT_EQ(find_json(text, "/a/b/c"), std::nullopt);

  const std::string inner = R"({"c/d~": [ 1.5e3,"]\"x",[ ], {"e":null}], "~1": [[-1, false], 2]})";
  EXPECT_EQ(find_json(inner, "/c~1d~0"), 1U);
  EXPECT_EQ(find_json(inner, "/" + json_pointer_part("c/d~") + "/0"), inner.find("1.5e3"));
  EXPECT_EQ(find_json(inner, "/c~1d~0/1"), inner.find(R"("]\"x")"));
  EXPECT_EQ(find_json(inner, "/c~1d~0/2"), inner.find("[ ]"));
  EXPECT_EQ(find_json(inner, "/c~1d~0/3/e"), inner.find(R"("e")"));
  EXPECT_EQ(find_json(inner, "/c~1d~0/4"), std::nullopt);
  EXPECT_EQ(find_json(inner, "/" + json_pointer_part("~1") + "/0/1"), inner.find("false"));
  EXPECT_EQ(find_json(inner, "/~01/1"), inner.find("2]"));
  EXPECT_EQ(find_json("3", "/a"), std::nullopt);
  EXPECT_EQ(find_json("", "/a"), std::nullopt);
}

}  // namespace
}  // namespace tessera
