#include "tessera/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::array<float, 6> kFloats = {0, 1, 2, 3, 4, 5};

std::string length_prefix(std::uint64_t length) {
  std::string text;
  for (unsigned i = 0; i < 8; ++i) {
    text += static_cast<char>(length >> (8U * i) & 0xffU);
  }
  return text;
}

std::string make_file(std::string_view header, std::string_view data = "") {
  return length_prefix(header.size()) + std::string(header) + std::string(data);
}

std::string float_bytes() {
  return {reinterpret_cast<const char*>(kFloats.data()), sizeof(kFloats)};
}

Error caught(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "no error"};
}

class SafetensorsTest : public ::testing::Test {
 protected:
  // The message of reading a file with these bytes, without its path.
  std::string refusal(std::string_view bytes) const {
    write_test_file(path_, bytes);
    const Error error = caught([&] { SafetensorsFile file(path_); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData) << error.message();
    const std::string prefix = path_.string() + ": ";
    EXPECT_TRUE(error.message().starts_with(prefix)) << error.message();
    return error.message().substr(std::min(prefix.size(), error.message().size()));
  }

  TestDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "model.safetensors";
};

// The bytes that the reference implementation's own tests expect (safetensors 0.4, tensor.rs:
// test_serialization, test_serialization_forced_alignement, test_empty).
TEST_F(SafetensorsTest, WritesTheBytesOfTheReference) {
  const auto data = std::as_bytes(std::span(kFloats));
  const auto written = [&](const std::vector<SafetensorsTensor>& tensors,
                           const std::map<std::string, std::string>& metadata = {}) {
    const FileDigest reported = write_safetensors(path_, tensors, metadata);
    const std::string bytes = read_file(path_);
    EXPECT_EQ(reported, digest(std::as_bytes(std::span(bytes))));
    return bytes;
  };
  EXPECT_EQ(written({{.name = "attn.0", .shape = {1, 2, 3}, .data = data}}),
            make_file(R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})",
                      float_bytes()));
  EXPECT_EQ(written({{.name = "attn0", .shape = {1, 1, 2, 3}, .data = data}}),
            make_file(R"({"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}}       )",
                      float_bytes()));
  EXPECT_EQ(written({}), make_file("{}      "));
  EXPECT_EQ(written({}, {{"framework", "pt"}}),
            make_file(R"({"__metadata__":{"framework":"pt"}}     )"));
}

TEST_F(SafetensorsTest, ReadsTheBytesOfTheReference) {
  write_test_file(
      path_,
      make_file(R"({"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}}       )",
                float_bytes()));
  const SafetensorsFile file(path_);
  ASSERT_EQ(file.tensors().size(), 1U);
  const SafetensorsTensor& tensor = file.tensors()[0];
  EXPECT_EQ(tensor.name, "attn0");
  EXPECT_EQ(tensor.dtype, DType::kF32);
  EXPECT_THAT(tensor.shape, ElementsAre(1, 1, 2, 3));
  ASSERT_EQ(tensor.data.size(), sizeof(kFloats));
  const auto expected = std::as_bytes(std::span(kFloats));
  EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), expected.begin()));
  EXPECT_GE(tensor.data.data(), file.bytes().data()) << "a view into the mapping, not a copy";
  EXPECT_EQ(file.find("attn0"), &tensor);
  EXPECT_EQ(file.find("attn"), nullptr);
  EXPECT_THAT(file.metadata(), IsEmpty());
}

TEST_F(SafetensorsTest, WhatIsWrittenReadsBack) {
  // More than one chunk of the writer, and sizes that would leave the next tensor unaligned.
  std::vector<std::byte> large((std::size_t{9} << 20U) + 3);
  for (std::size_t i = 0; i < large.size(); ++i) {
    large[i] = static_cast<std::byte>(philox(1, {static_cast<std::uint32_t>(i), 0, 0, 0})[0]);
  }
  const std::span<const std::byte> bytes(large);
  const auto large_size = static_cast<std::int64_t>(large.size());
  const std::vector<SafetensorsTensor> tensors = {
      {.name = "u8", .dtype = DType::kU8, .shape = {large_size}, .data = bytes},
      {.name = "bf16", .dtype = DType::kBF16, .shape = {3}, .data = bytes.first(6)},
      {.name = "f32", .dtype = DType::kF32, .shape = {2, 3}, .data = bytes.first(24)},
      {.name = "f64 \"quoted\" é\n", .dtype = DType::kF64, .shape = {}, .data = bytes.first(8)},
      {.name = "f16", .dtype = DType::kF16, .shape = {1}, .data = bytes.first(2)},
      {.name = "i32", .dtype = DType::kI32, .shape = {1, 1}, .data = bytes.first(4)},
      {.name = "", .dtype = DType::kI64, .shape = {5, 0, 7}, .data = {}},
  };
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"a", "\"\\\t"}};
  write_safetensors(path_, tensors, metadata);
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.tensors().size(), tensors.size());
  for (const SafetensorsTensor& tensor : tensors) {
    const SafetensorsTensor* found = file.find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->dtype, tensor.dtype);
    EXPECT_EQ(found->shape, tensor.shape);
    ASSERT_EQ(found->data.size(), tensor.data.size());
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), found->data.begin()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found->data.data()) % size_bytes(tensor.dtype), 0U)
        << tensor.name;
  }
}

TEST_F(SafetensorsTest, RefusesBadLengths) {
  EXPECT_EQ(refusal(""),
            "offset 0: found 0 bytes, expected at least the 8 of a safetensors header length");
  EXPECT_EQ(refusal("1234567"),
            "offset 0: found 7 bytes, expected at least the 8 of a safetensors header length");
  EXPECT_EQ(refusal(length_prefix(100'000'001) + "{}"),
            "header length 100000001 at offset 0: expected at most 100000000");
  EXPECT_EQ(refusal(length_prefix(~std::uint64_t{0}) + "{}"),
            "header length 18446744073709551615 at offset 0: expected at most 100000000");
  EXPECT_EQ(refusal(length_prefix(3) + "{}"),
            "the header needs 3 bytes after offset 8, found 2: the file is truncated");
}

TEST_F(SafetensorsTest, RefusesBadHeaders) {
  EXPECT_EQ(refusal(make_file("")), "the header at offset 8 does not begin with '{'");
  EXPECT_EQ(refusal(make_file(" {}")), "the header at offset 8 does not begin with '{'");
  EXPECT_EQ(refusal(make_file("[]")), "the header at offset 8 does not begin with '{'");
  EXPECT_THAT(refusal(make_file("{")), StartsWith("header: not JSON at byte 9: "));
  EXPECT_THAT(refusal(make_file("{} x")), StartsWith("header: not JSON at byte 11: "));
  EXPECT_EQ(refusal(make_file(std::string_view("{}\0", 3))),
            "header: not JSON at byte 10: found a zero byte");
  EXPECT_THAT(refusal(make_file("{\"\xff\":{}}")), StartsWith("header: not JSON at byte 10: "));
  EXPECT_THAT(refusal(make_file("{\"a\":" + std::string(1'000'000, '['))),
              HasSubstr("nested deeper than"));
  const std::string empty = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(refusal(make_file(format(R"({{"t":{0},"t":{0}}})", empty))),
            "header: byte 61: key 't' appears twice");
  EXPECT_EQ(
      refusal(make_file(R"({"t":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})")),
      "header: byte 27: key 'dtype' appears twice");
  EXPECT_EQ(refusal(make_file(R"({"__metadata__":{"a":"1","a":"2"}})")),
            "header: byte 33: key 'a' appears twice");
  EXPECT_EQ(refusal(make_file(R"({"__metadata__":[]})")),
            "__metadata__ at offset 9 is a JSON array: expected an object of strings");
  EXPECT_EQ(refusal(make_file(R"({"__metadata__":{"a":1}})")),
            "__metadata__ at offset 9: 'a' is a JSON number: expected a string");
}

// Other programs' files may hold what no op of ours takes.
TEST_F(SafetensorsTest, KnowsTheOtherDtypes) {
  for (const auto& [dtype, count] : std::vector<std::pair<std::string, int>>{{"BOOL", 8},
                                                                             {"I8", 8},
                                                                             {"F8_E4M3", 8},
                                                                             {"F8_E5M2", 8},
                                                                             {"F8_E8M0", 8},
                                                                             {"I16", 4},
                                                                             {"U16", 4},
                                                                             {"U32", 2},
                                                                             {"U64", 1},
                                                                             {"C64", 1}}) {
    write_test_file(
        path_,
        make_file(
            format(
                R"({{"mask":{{"dtype":"{}","shape":[{}],"data_offsets":[0,8]}}}})", dtype, count),
            "12345678"));
    const SafetensorsFile file(path_);
    EXPECT_TRUE(file.tensors().empty());
    EXPECT_TRUE(file.has("mask"));
    ASSERT_EQ(file.others().size(), 1U);
    EXPECT_EQ(file.others()[0].dtype, dtype);
    EXPECT_THAT(file.others()[0].shape, ElementsAre(count));
  }
}

TEST_F(SafetensorsTest, RefusesBadTensors) {
  const auto tensor = [&](std::string_view entry) {
    return refusal(make_file(format(R"({{"t":{}}})", entry), "12345678"));
  };
  EXPECT_EQ(tensor("3"), "tensor 't' at offset 9 is a JSON number: expected an object");
  EXPECT_EQ(tensor(R"({"shape":[8],"data_offsets":[0,8]})"),
            "tensor 't' at offset 9: expected a string 'dtype'");
  EXPECT_EQ(tensor(R"({"dtype":"Q4","shape":[8],"data_offsets":[0,8]})"),
            "tensor 't' at offset 9: dtype 'Q4' is not known");
  EXPECT_EQ(tensor(R"({"dtype":"BOOL","shape":[7],"data_offsets":[0,8]})"),
            "tensor 't' at offset 9: data_offsets span 8 bytes, expected 7 for BOOL (7)");
  EXPECT_EQ(tensor(R"({"dtype":"U8","data_offsets":[0,8]})"),
            "tensor 't' at offset 9: expected an array 'shape'");
  EXPECT_EQ(tensor(R"({"dtype":"U8","shape":[8]})"),
            "tensor 't' at offset 9: expected an array 'data_offsets'");
  for (const std::string_view dim : {"-8", "8.0", "\"8\"", "18446744073709551615", "null"}) {
    EXPECT_EQ(
        tensor(format(R"({{"dtype":"U8","shape":[{}],"data_offsets":[0,8]}})", dim)),
        format("tensor 't' at offset 9: 'shape' holds {}: expected integers from 0 to 2^63 - 1",
               dim));
  }
  for (const std::string_view offsets : {"[0]", "[8,0]", "[0,8,8]", "[]"}) {
    EXPECT_EQ(tensor(format(R"({{"dtype":"U8","shape":[8],"data_offsets":{}}})", offsets)),
              "tensor 't' at offset 9: expected data_offsets of [begin, end] with begin <= end");
  }
  EXPECT_EQ(tensor(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
            "tensor 't' at offset 9: data_offsets span 8 bytes, expected 12 for F32 (3)");
  EXPECT_EQ(tensor(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
            "tensor 't' at offset 9: shape (4294967296, 4294967296) has more than 2^63 bytes");
  // 2^61 + 2 elements of 4 bytes are 8 bytes when the product wraps.
  EXPECT_EQ(tensor(R"({"dtype":"F32","shape":[2305843009213693954],"data_offsets":[0,8]})"),
            "tensor 't' at offset 9: shape (2305843009213693954) has more than 2^63 bytes");
}

TEST_F(SafetensorsTest, RefusesHolesOverlapsAndTruncation) {
  const auto two = [&](std::string_view a, std::string_view b, std::size_t size) {
    const std::string header = format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                                      R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                                      a,
                                      b);
    return refusal(make_file(header, std::string(size, 'x')));
  };
  EXPECT_EQ(two("[0,4]", "[5,9]", 9),
            "tensor 'b' begins at data offset 5, expected 4: tensors leave a hole");
  EXPECT_EQ(two("[5,9]", "[1,5]", 9),
            "tensor 'b' begins at data offset 1, expected 0: tensors leave a hole");
  EXPECT_EQ(two("[0,4]", "[3,7]", 7),
            "tensor 'b' begins at data offset 3, expected 4: tensors overlap");
  EXPECT_EQ(two("[0,4]", "[0,4]", 4),
            "tensor 'b' begins at data offset 0, expected 4: tensors overlap");
  EXPECT_EQ(two("[0,4]", "[4,8]", 7),
            "tensor 'b' ends at data offset 8, but there are 7 bytes of data: the file is "
            "truncated");
  EXPECT_EQ(two("[0,4]", "[4,8]", 9),
            "found 9 bytes of data, expected 8: those from data offset 8 on belong to no tensor");
}

// Every single-byte change of a header, and random ones: either refused or a consistent file.
TEST_F(SafetensorsTest, NeverCrashesOnChangedHeaders) {
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"U8","shape":[],"data_offsets":[24,25]}})";
  const std::string good = make_file(header, float_bytes() + "x");
  const auto check = [&](const std::string& bytes) {
    write_test_file(path_, bytes);
    try {
      const SafetensorsFile file(path_);
      std::size_t total = 0;
      for (const SafetensorsTensor& tensor : file.tensors()) {
        total += tensor.data.size();
      }
      EXPECT_LT(total, bytes.size());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    }
  };
  const std::size_t header_end = 8 + header.size();
  for (std::size_t i = 0; i < header_end; ++i) {
    for (const unsigned flip : {1U, 2U, 16U, 128U}) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(static_cast<unsigned char>(bytes[i]) ^ flip);
      check(bytes);
    }
  }
  for (std::uint32_t i = 0; i < 2000; ++i) {
    std::string bytes = good;
    for (std::uint32_t j = 0; j < 3; ++j) {
      const auto place = uniform(2, i * 3 + j) * static_cast<double>(header_end);
      bytes[static_cast<std::size_t>(place)] = " 0129-,:{}[]\"eE."[philox(3, {i, j, 0, 0})[0] % 16];
    }
    check(bytes);
  }
}

TEST_F(SafetensorsTest, WriterRefusesWhatItCannotKeep) {
  const auto data = std::as_bytes(std::span(kFloats));
  const auto refused = [&](const std::vector<SafetensorsTensor>& tensors) {
    const Error error = caught([&] { write_safetensors(path_, tensors); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_FALSE(std::filesystem::exists(path_));
    return error.message();
  };
  const SafetensorsTensor good{.name = "a", .shape = {6}, .data = data};
  EXPECT_EQ(refused({good, good}), "tensor name 'a' is reserved or used twice");
  EXPECT_EQ(refused({{.name = "__metadata__", .shape = {6}, .data = data}}),
            "tensor name '__metadata__' is reserved or used twice");
  EXPECT_EQ(refused({{.name = "a", .shape = {5}, .data = data}}),
            "tensor 'a': F32 (5) given 24 bytes of data");
  EXPECT_EQ(refused({{.name = "a", .shape = {-6}, .data = data}}),
            "tensor 'a': F32 (-6) given 24 bytes of data");
  EXPECT_THAT(refused({{.name = "\xff", .shape = {6}, .data = data}}),
              HasSubstr("a tensor name or metadata: "));
}

// Tensors of two files, in another order than they have there, and some of memory between them: as
// the same tensors all from memory.
TEST_F(SafetensorsTest, TakesTensorsFromTheirFiles) {
  std::vector<std::uint32_t> numbers(6'000'000);
  std::iota(numbers.begin(), numbers.end(), 0U);
  const auto bytes = std::as_bytes(std::span(numbers));
  std::vector<SafetensorsTensor> tensors;
  std::size_t at = 0;
  for (const std::int64_t size : {5, 2'500'000, 1, 2'200'000, 0, 300'000, 7, 900'000}) {
    tensors.push_back({.name = format("t{}", tensors.size()),
                       .dtype = DType::kI32,
                       .shape = {size},
                       .data = bytes.subspan(at, static_cast<std::size_t>(size) * 4)});
    at += static_cast<std::size_t>(size) * 4;
  }
  const FileDigest expected = write_safetensors(path_, tensors);
  const std::string content = read_file(path_);

  const auto source = directory_.path() / "source-0";
  const auto other = directory_.path() / "source-1";
  write_safetensors(source, std::vector{tensors[7], tensors[1], tensors[4], tensors[0]});
  write_safetensors(other, std::vector{tensors[6], tensors[3]});
  const SafetensorsFile first(source);
  const SafetensorsFile second(other);
  for (const auto& [path, file] : {std::pair(source, &first), std::pair(other, &second)}) {
    for (const SafetensorsTensor& tensor : file->tensors()) {
      SafetensorsTensor& taken = tensors[static_cast<std::size_t>(tensor.name[1] - '0')];
      taken.data = tensor.data;
      taken.source = {.path = path,
                      .size_bytes = std::ssize(file->bytes()),
                      .offset = tensor.data.data() - file->bytes().data()};
    }
  }
  EXPECT_EQ(write_safetensors(path_, tensors), expected);
  EXPECT_TRUE(read_file(path_) == content);

  std::filesystem::resize_file(source, std::filesystem::file_size(source) - 4096);
  const Error error = caught([&] { write_safetensors(path_, tensors); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
  EXPECT_THAT(error.message(), HasSubstr(source.string() + ": found "));
  EXPECT_TRUE(read_file(path_) == content);
}

TEST_F(SafetensorsTest, WriterCountsTheBytes) {
  SafetensorsWriter writer(path_, {{{.name = "w", .dtype = DType::kF32, .shape = {6}}}});
  const auto bytes = std::as_bytes(std::span(kFloats));
  writer.append(bytes.first(20));
  EXPECT_THAT(caught([&] { writer.commit(); }).message(),
              HasSubstr("4 bytes of tensors have not come"));
  EXPECT_THAT(caught([&] { writer.append(bytes.first(5)); }).message(),
              HasSubstr("1 bytes more than the tensors have"));
  writer.append(bytes.last(4));
  writer.commit();
  EXPECT_TRUE(std::ranges::equal(SafetensorsFile(path_).find("w")->data, bytes));
}

TEST_F(SafetensorsTest, AFailedWriteLeavesTheOldFile) {
  write_test_file(path_, "old");
  const std::filesystem::path nowhere = directory_.path() / "none" / "model.safetensors";
  const Error error = caught([&] { write_safetensors(nowhere, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kDeviceError);
  EXPECT_THAT(error.message(), HasSubstr("cannot create " + nowhere.string()));
  EXPECT_THAT(error.message(), HasSubstr("No such file or directory"));
  EXPECT_EQ(read_file(path_), "old");
}

}  // namespace
}  // namespace tessera
