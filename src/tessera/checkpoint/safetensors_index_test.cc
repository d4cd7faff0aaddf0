#include "tessera/checkpoint/safetensors_index.h"

#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

SafetensorsIndex parse(std::string_view text) {
  return parse_safetensors_index(text, "i.json");
}

TEST(SafetensorsIndex, HasTheTensorsOfEachFile) {
  const SafetensorsIndex index = parse(
      R"({"metadata": {"total_size": 3}, "weight_map": {"b": "2.st", "a": "1.st", "c": "2.st"}})");
  EXPECT_THAT(index.files,
              ElementsAre(Pair("1.st", ElementsAre("a")), Pair("2.st", ElementsAre("b", "c"))));
  EXPECT_THAT(index.problems, IsEmpty());
}

TEST(SafetensorsIndex, ListsAllEntriesThatNameNoFile) {
  const SafetensorsIndex index = parse(
      R"({"weight_map": {"a": "../1.st", "b": 3, "c": "", "d": "..", "e": "/x", "f": "1.st"}})");
  EXPECT_THAT(index.files, ElementsAre(Pair("1.st", ElementsAre("f"))));
  const std::string name = "expected the name of a file beside the index";
  EXPECT_THAT(
      index.problems,
      ElementsAre(Pair("a", "i.json: \"weight_map\": \"a\" at byte 16: found \"../1.st\", " + name),
                  Pair("b",
                       "i.json: \"weight_map\": \"b\" at byte 32: found a JSON number, expected a "
                       "file's name"),
                  Pair("c", "i.json: \"weight_map\": \"c\" at byte 40: found \"\", " + name),
                  Pair("d", "i.json: \"weight_map\": \"d\" at byte 49: found \"..\", " + name),
                  Pair("e", "i.json: \"weight_map\": \"e\" at byte 60: found \"/x\", " + name)));
}

TEST(SafetensorsIndex, RefusesWhatIsNoIndex) {
  const auto refusal = [](std::string_view text) {
    return error_of(ErrorCode::kInvalidData, [&] { parse(text); });
  };
  EXPECT_THAT(refusal(R"({"weight_map": )"), StartsWith("i.json: not JSON at byte 15: "));
  const std::string expected = ", expected an object of tensors and the files that they are in";
  EXPECT_EQ(refusal("[]"), "i.json: \"weight_map\": found none" + expected);
  EXPECT_EQ(refusal("{}"), "i.json: \"weight_map\": found none" + expected);
  EXPECT_EQ(refusal(R"({"weight_map": 3})"),
            "i.json: \"weight_map\" at byte 1: found a JSON number" + expected);
  EXPECT_EQ(refusal(R"({"weight_map": {}})"),
            "i.json: \"weight_map\" at byte 1: found nothing in it" + expected);
  EXPECT_EQ(refusal(R"({"weight_map": {"a": "1.st", "b": "1.st", "a": "2.st"}})"),
            "i.json: byte 42: key 'a' appears twice");
}

}  // namespace
}  // namespace tessera
