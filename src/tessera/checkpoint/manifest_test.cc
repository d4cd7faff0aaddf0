#include "tessera/checkpoint/manifest.h"

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Manifest example() {
  return {
      .meta = {.step = 400,
               .applied_steps = 399,
               .tokens_seen = 819200,
               .seed = 0xffffffffffffffffULL,
               .model = R"({"name":"llama3","eps":1e-05,"dim":256})",
               .config = "[run]\nseed = 42 # \"é\"\n",
               .tokenizer = "0123456789abcdef0123456789abcdef"},
      .files = {{.name = "model-00001-of-00001.safetensors",
                 .digest = {.size_bytes = 120, .xxh3_128 = "99aa06d3014798d86001c324468d497f"}}},
      .tensors = {
          {.name = "norm",
           .role = TensorRole::kParameter,
           .dtype = DType::kBF16,
           .shape = {256},
           .slices = {{.file = "model-00001-of-00001.safetensors",
                       .key = "norm",
                       .part = {.offset = {0}, .extent = {192}, .begin = 0, .count = 192}},
                      {.file = "model-00001-of-00001.safetensors",
                       .key = "norm.1",
                       .part = {.offset = {192}, .extent = {64}, .begin = 0, .count = 50}},
                      {.file = "model-00001-of-00001.safetensors",
                       .key = "norm.2",
                       .part = {.offset = {192}, .extent = {64}, .begin = 50, .count = 14}}}},
          {.name = "scalar",
           .role = TensorRole::kMoment2,
           .dtype = DType::kF32,
           .shape = {},
           .slices = {{.file = "model-00001-of-00001.safetensors",
                       .key = "moment2/scalar",
                       .part = {.offset = {}, .extent = {}, .begin = 0, .count = 1}}}}}};
}

// A manifest with this body and the right checksum.
std::string with_checksum(std::string_view body) {
  return format("{{\"xxh3_128\":\"{}\",\n\"manifest\":{}}}\n",
                digest(std::as_bytes(std::span(body))).xxh3_128,
                body);
}

Error caught(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "no error"};
}

// People and other programs read this text: a change of it is a change of the format.
TEST(Manifest, PrintsTheDocumentedText) {
  const std::string body = R"({
 "format": "tessera-checkpoint",
 "version": 2,
 "trainer": {"step":400,"applied_steps":399,"tokens_seen":819200,"seed":18446744073709551615},
 "model": {"name":"llama3","eps":1e-05,"dim":256},
 "config": "[run]\nseed = 42 # \"é\"\n",
 "tokenizer": "0123456789abcdef0123456789abcdef",
 "files": [
  {"name":"model-00001-of-00001.safetensors","size_bytes":120,"xxh3_128":"99aa06d3014798d86001c324468d497f"}
 ],
 "tensors": [
  {"name":"norm","role":"parameter","dtype":"bf16","shape":[256],"slices":[{"file":"model-00001-of-00001.safetensors","key":"norm","offset":[0],"extent":[192]},{"file":"model-00001-of-00001.safetensors","key":"norm.1","offset":[192],"extent":[64],"begin":0,"count":50},{"file":"model-00001-of-00001.safetensors","key":"norm.2","offset":[192],"extent":[64],"begin":50,"count":14}]},
  {"name":"scalar","role":"moment2","dtype":"f32","shape":[],"slices":[{"file":"model-00001-of-00001.safetensors","key":"moment2/scalar","offset":[],"extent":[]}]}
 ]
})";
  EXPECT_EQ(print_manifest(example()), with_checksum(body));
}

TEST(Manifest, PrintsAndParses) {
  EXPECT_EQ(parse_manifest(print_manifest(example()), "m"), example());
  Manifest empty;
  empty.meta.model = "null";
  EXPECT_EQ(parse_manifest(print_manifest(empty), "m"), empty);
}

TEST(Manifest, SaysHowItsSumsWereMadeAndHowManyTensorsThereAre) {
  Manifest manifest = example();
  manifest.meta.sum_order = "99aa06d3014798d86001c324468d497f";
  manifest.meta.num_tensors = 2;
  EXPECT_EQ(parse_manifest(print_manifest(manifest), "m"), manifest);
  manifest.meta.num_tensors = 3;
  const Error error = caught([&] { parse_manifest(print_manifest(manifest), "m"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
  EXPECT_THAT(error.message(),
              HasSubstr("found 2 tensors, expected the 3 of the whole checkpoint"));
}

TEST(Manifest, HasBuffersByTheirRole) {
  Manifest manifest = example();
  manifest.tensors[1].role = TensorRole::kBuffer;
  const std::string text = print_manifest(manifest);
  EXPECT_THAT(text, HasSubstr("\"role\":\"buffer\""));
  EXPECT_EQ(parse_manifest(text, "m"), manifest);
}

TEST(Manifest, RefusesEveryChangedByte) {
  const std::string good = print_manifest(example());
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const unsigned flip : {1U, 32U, 128U}) {
      std::string bad = good;
      bad[i] = static_cast<char>(static_cast<unsigned char>(bad[i]) ^ flip);
      const Error error = caught([&] { parse_manifest(bad, "dir/manifest.json"); });
      ASSERT_EQ(error.code(), ErrorCode::kInvalidData) << "byte " << i;
      ASSERT_THAT(error.message(), HasSubstr("dir/manifest.json: found "));
      ASSERT_THAT(error.message(), HasSubstr("damaged"));
    }
  }
}

TEST(Manifest, RefusesEveryTruncation) {
  const std::string good = print_manifest(example());
  for (std::size_t size = 0; size < good.size(); ++size) {
    const Error error = caught([&] { parse_manifest(good.substr(0, size), "m"); });
    ASSERT_EQ(error.code(), ErrorCode::kInvalidData) << "size " << size;
  }
  EXPECT_EQ(caught([&] { parse_manifest(good + " ", "m"); }).code(), ErrorCode::kInvalidData);
}

TEST(Manifest, RefusesOtherContents) {
  const auto refusal = [](std::string_view body) {
    return caught([&] { parse_manifest(with_checksum(body), "m"); });
  };
  const Error newer = refusal(R"({"format":"tessera-checkpoint","version":3})");
  EXPECT_EQ(newer.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(newer.message(), HasSubstr("\"version\": found 3, expected 1 to 2: a later Tessera"));
  for (const char* const version : {"0", "-1", "1.5", "\"2\""}) {
    const Error odd = refusal(format(R"({{"format":"tessera-checkpoint","version":{}}})", version));
    EXPECT_EQ(odd.code(), ErrorCode::kInvalidData);
    EXPECT_THAT(odd.message(),
                AllOf(HasSubstr(format("\"version\": found {}, expected 1 to 2", version)),
                      Not(HasSubstr("later"))));
  }
  const Error other = refusal(R"({"format":"other","version":1})");
  EXPECT_EQ(other.code(), ErrorCode::kInvalidData);
  EXPECT_STREQ(other.what(), "format \"other\": expected \"tessera-checkpoint\" (while reading m)");
  for (const std::string_view body :
       {"", "[]", "3", "{}", R"({"format":"tessera-checkpoint","version":1})"}) {
    const Error error = refusal(body);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData) << body;
    EXPECT_THAT(error.message(), HasSubstr("not a manifest: "));
  }
}

TEST(Manifest, RefusesBadFields) {
  const auto refusal = [](std::string_view from, std::string_view to) {
    std::string text = print_manifest(example());
    const std::string_view begin = "\"manifest\":";
    std::string body = text.substr(text.find(begin) + begin.size());
    body.resize(body.size() - 2);
    body.replace(body.find(from), from.size(), to);
    const Error error = caught([&] { parse_manifest(with_checksum(body), "m"); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    return error.message();
  };
  EXPECT_EQ(refusal("\"role\":\"moment2\"", "\"role\":\"moment3\""),
            "role 'moment3': expected parameter, moment1, moment2, master or buffer");
  EXPECT_EQ(refusal("\"bf16\"", "\"bf17\""),
            "dtype 'bf17': expected f64, f32, bf16, f16, i64, i32 or u8");
  EXPECT_EQ(refusal("\"name\":\"model-", "\"name\":\"../model-"),
            "file name '../model-00001-of-00001.safetensors': expected a name without '/'");
  for (const char* const step :
       {"\"x\"", "-1", "4e2", "400.0", "2147483649", "99999999999999999999", "null", "[400]"}) {
    EXPECT_EQ(refusal("\"step\":400", format("\"step\":{}", step)),
              format("step: found {}, expected a whole number from 0 to 2147483648",
                     std::string(step) == "99999999999999999999" ? "1e+20"
                     : std::string(step) == "4e2"                ? "400.0"
                                                                 : step));
  }
  EXPECT_EQ(refusal("\"applied_steps\":399", "\"applied_steps\":401"),
            "applied_steps: found 401, expected a whole number from 0 to 400");
  EXPECT_THAT(refusal("\"tokens_seen\":819200", "\"tokens_seen\":-5"),
              HasSubstr("tokens_seen: found -5"));
  EXPECT_THAT(refusal("\"seed\":18446744073709551615", "\"seed\":-1"), HasSubstr("seed: found -1"));
  EXPECT_THAT(refusal("\"seed\":18446744073709551615", "\"seed\":18446744073709551616"),
              HasSubstr("seed: found 1.8446744073709552e+19"));
  EXPECT_THAT(refusal("\"size_bytes\":120", "\"size_bytes\":120.5"),
              HasSubstr("size_bytes: found 120.5"));
  EXPECT_EQ(refusal("\"shape\":[256]", "\"shape\":[256.5]"),
            "shape: found [256.5], expected whole numbers");
  EXPECT_EQ(refusal("\"offset\":[0]", "\"offset\":0"), "offset: found 0, expected whole numbers");
  EXPECT_THAT(refusal("\"begin\":0", "\"begin\":-1"), HasSubstr("begin: found -1"));
}

TEST(Manifest, RefusesAModelThatIsNotJson) {
  Manifest manifest = example();
  manifest.meta.model = "llama";
  const Error error = caught([&] { print_manifest(manifest); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("a checkpoint's model or a name: "));
}

}  // namespace
}  // namespace tessera
