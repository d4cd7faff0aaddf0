#include "tessera/data/byte_stream.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/data/test_compress.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Text that compresses to some extent: random letters of a small alphabet.
std::string some_text(std::size_t size) {
  std::string text;
  for (std::uint64_t i = 0; text.size() < size; ++i) {
    text += static_cast<char>('a' + static_cast<int>(uniform(7, i) * 8));
  }
  return text;
}

std::string read_all(ByteStream& stream, std::size_t at_once) {
  std::string all;
  std::string part(at_once, '\0');
  std::size_t count = at_once;
  while (count == at_once) {
    count = stream.read(part);
    all.append(part, 0, count);
  }
  EXPECT_EQ(stream.read(part), 0U) << "the end stays the end";
  return all;
}

class ByteStreamTest : public ::testing::TestWithParam<Compression> {
 protected:
  std::filesystem::path write(std::string_view bytes) const {
    const std::string_view ending = GetParam() == Compression::kGzip   ? ".gz"
                                    : GetParam() == Compression::kZstd ? ".zst"
                                                                       : "";
    const std::filesystem::path path = directory_.path() / format("file.txt{}", ending);
    write_test_file(path, bytes);
    return path;
  }

  TestDirectory directory_;
};

TEST_P(ByteStreamTest, GivesWhatWasWrittenInPartsOfAnySize) {
  const std::string text = some_text(700'000);
  const std::filesystem::path path = write(compressed(GetParam(), text));
  for (const std::size_t at_once : {1U, 999U, 131'072U, 1'000'000U}) {
    ByteStream stream(path);
    if (at_once > 1) {
      EXPECT_EQ(read_all(stream, at_once), text);
      EXPECT_EQ(stream.file_position(),
                static_cast<std::int64_t>(std::filesystem::file_size(path)));
    } else {
      char c = 0;
      EXPECT_EQ(stream.read({&c, 1}), 1U);
      EXPECT_EQ(c, text[0]);
    }
  }
}

TEST_P(ByteStreamTest, JoinsMembersAndFrames) {
  const std::string text = some_text(300'000);
  ByteStream stream(write(compressed(GetParam(), text) + compressed(GetParam(), "") +
                          compressed(GetParam(), "tail")));
  EXPECT_EQ(read_all(stream, 4096), text + "tail");
}

TEST_P(ByteStreamTest, SkipsToAnyByte) {
  const std::string text = some_text(400'000);
  const std::filesystem::path path = write(compressed(GetParam(), text));
  for (const std::size_t offset : {0U, 1U, 262'144U, 399'999U, 400'000U}) {
    ByteStream stream(path);
    stream.skip_to(static_cast<std::int64_t>(offset));
    EXPECT_EQ(read_all(stream, 65'536), text.substr(offset));
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         ByteStreamTest,
                         ::testing::Values(Compression::kNone,
                                           Compression::kGzip,
                                           Compression::kZstd),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST(ZstdStream, SaysThatTheFramesBeforeAreWhole) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "file.zst";
  write_test_file(
      path,
      compressed(Compression::kZstd, "one") + compressed(Compression::kZstd, "two") + "garbage");
  EXPECT_THAT(error_of(ErrorCode::kInvalidData,
                       [&] {
                         ByteStream stream(path);
                         read_all(stream, 65'536);
                       }),
              HasSubstr("broken zstd data after 2 whole frames ("));
}

// RFC 8878, 3.1.2: 0x184D2A50 to 0x184D2A5F, a size of four bytes, both little-endian, and so many
// bytes of whoever wrote them: pzstd puts one before each frame.
std::string skippable_frame(int number, std::string_view content) {
  std::string frame = {static_cast<char>(0x50 + number), '\x2a', '\x4d', '\x18'};
  for (int byte = 0; byte < 4; ++byte) {
    frame += static_cast<char>(content.size() >> (8U * static_cast<unsigned>(byte)));
  }
  return frame + std::string(content);
}

TEST(ZstdStream, ReadsOverSkippableFrames) {
  const TestDirectory directory;
  const std::string text = some_text(300'000);
  const std::string one = compressed(Compression::kZstd, text);
  const std::string two = compressed(Compression::kZstd, "tail");
  // Told by its name, and by its first bytes.
  for (const char* const name : {"file.zst", "file.jsonl"}) {
    const std::filesystem::path path = directory.path() / name;
    for (int number = 0; number < 16; ++number) {
      std::string bytes = skippable_frame(number, "four");
      for (const std::string& frame : {skippable_frame(number, ""),
                                       one,
                                       skippable_frame(number, some_text(200'000)),
                                       two,
                                       skippable_frame(number, "end")}) {
        bytes += frame;
      }
      write_test_file(path, bytes);
      ByteStream stream(path);
      EXPECT_EQ(read_all(stream, 4096), text + "tail") << name << ", " << number;
    }
  }
  const std::filesystem::path cut = directory.path() / "cut.zst";
  write_test_file(cut, one + skippable_frame(0, "content").substr(0, 12));
  EXPECT_THAT(error_of(ErrorCode::kInvalidData,
                       [&] {
                         ByteStream stream(cut);
                         read_all(stream, 65'536);
                       }),
              HasSubstr("the zstd data are cut off"));
}

class PackedTest : public ByteStreamTest {
 protected:
  std::string refusal(std::string_view bytes, const ByteStreamOptions& options = {}) const {
    const std::filesystem::path path = write(bytes);
    return error_of(ErrorCode::kInvalidData, [&] {
      ByteStream stream(path, options);
      read_all(stream, 65'536);
    });
  }
};

TEST_P(PackedTest, RefusesEveryCut) {
  const std::string packed = compressed(GetParam(), some_text(5000));
  for (std::size_t size = 1; size < packed.size(); size += 97) {
    EXPECT_THAT(refusal(packed.substr(0, size)),
                AllOf(HasSubstr("file.txt"),
                      HasSubstr(format("data are cut off at byte {} of the file", size))));
  }
}

TEST_P(PackedTest, RefusesDamageAndWhatIsNotCompressed) {
  std::string packed = compressed(GetParam(), some_text(300'000));
  packed[packed.size() / 2] = static_cast<char>(packed[packed.size() / 2] ^ 0x10);
  packed[packed.size() / 2 + 1] = static_cast<char>(packed[packed.size() / 2 + 1] ^ 0x81);
  EXPECT_THAT(refusal(packed), HasSubstr("broken " + std::string(to_string(GetParam()))));
  EXPECT_THAT(refusal("this is plain text"), HasSubstr("broken"));
  if (GetParam() == Compression::kZstd) {
    EXPECT_THAT(refusal(compressed(GetParam(), "x") + "garbage"), HasSubstr("broken"));
  }
}

class GzipTest : public PackedTest {};

// As gzip and Python's gzip do.
TEST_P(GzipTest, ReadsOverZerosBehindAMember) {
  const std::string text = some_text(300'000);
  const std::string packed = compressed(GetParam(), text);
  for (const std::size_t zeros : {1U, 2U, 511U, 200'000U}) {
    ByteStream stream(write(packed + std::string(zeros, '\0')));
    EXPECT_EQ(read_all(stream, 65'536), text);
    ByteStream more(write(packed + std::string(zeros, '\0') + compressed(GetParam(), "tail")));
    EXPECT_EQ(read_all(more, 65'536), text + "tail");
  }
}

// As gzip does, which says so.
TEST_P(GzipTest, LeavesOutWhatFollowsTheData) {
  int number = 0;
  for (const std::string tail : {"garbage", "\x1f", "\x1fx", "\x8b\x1f"}) {
    const std::string packed = compressed(GetParam(), "x");
    const std::filesystem::path path = directory_.path() / format("file{}.txt.gz", ++number);
    write_test_file(path, packed + tail);
    ByteStream stream(path);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(read_all(stream, 1), "x");
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr(format("{}: what follows the gzip data is left out: it is none (byte {} "
                                 "of the file)",
                                 path.filename().string(),
                                 packed.size())));
    // A file that is read again has said it.
    ByteStream again(path);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(read_all(again, 1), "x");
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  }
  EXPECT_THAT(refusal(compressed(GetParam(), "x") + "\x1f\x8bgarbage"), HasSubstr("broken gzip"));
}

INSTANTIATE_TEST_SUITE_P(Gzip, GzipTest, ::testing::Values(Compression::kGzip));

// 20 MB of zeros in some KB.
TEST_P(PackedTest, RefusesMoreThanTheLimit) {
  std::string zeros;
  zeros.resize(20'000'000);
  const std::string packed = compressed(GetParam(), zeros);
  EXPECT_LT(packed.size(), 40'000U);
  EXPECT_THAT(refusal(packed, {.unpacked_limit = 1'000'000}),
              HasSubstr("unpack to more than the limit of 977 KiB: split the file, or raise the "
                        "limit if you trust it"));
  ByteStream stream(write(packed), {.unpacked_limit = 20'000'000});
  EXPECT_EQ(read_all(stream, 1 << 20U).size(), 20'000'000U);
}

INSTANTIATE_TEST_SUITE_P(All,
                         PackedTest,
                         ::testing::Values(Compression::kGzip, Compression::kZstd),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace tessera
