#include "tessera/base/direct_file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/testing/faults.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  }
  return bytes;
}

class DirectFileTest : public testing::Test {
 protected:
  void expect_written(std::span<const std::span<const std::byte>> pieces) const {
    std::vector<std::byte> expected;
    for (const auto piece : pieces) {
      expected.insert(expected.end(), piece.begin(), piece.end());
    }
    // Copied are all, every second one, none.
    for (const std::size_t period : {std::size_t{1}, std::size_t{2}, pieces.size() + 1}) {
      AtomicFile file(path_);
      DirectWriter writer(file.descriptor(), expected.size(), file.temporary());
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        if ((i + 1) % period == 0) {
          writer.append(pieces[i]);
        } else {
          writer.append_in_place(pieces[i]);
        }
      }
      writer.finish();
      file.commit();
      const MappedFile found(path_);
      EXPECT_TRUE(std::ranges::equal(found.bytes(), expected));
    }
  }

  TestDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "file";
};

// Sizes around the alignment and the size of a chunk, aligned in memory and not.
TEST_F(DirectFileTest, WritesPiecesBehindEachOther) {
  constexpr std::size_t kChunk = std::size_t{8} << 20U;
  const PageBuffer buffer(3 * kChunk);
  const std::span<std::byte> bytes = buffer.bytes();
  std::ranges::copy(numbered(bytes.size()), bytes.begin());
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, kDirectAlignment, kChunk - 1, kChunk, 2 * kChunk + 4097}) {
    for (const std::size_t offset : {std::size_t{0}, std::size_t{24}}) {
      SCOPED_TRACE(size);
      expect_written({{bytes.subspan(offset, size)}});
      expect_written({{bytes.first(4096), bytes.subspan(4096 + offset, size)}});
      expect_written({{bytes.first(100), bytes.first(0), bytes.subspan(offset, size)}});
      // As the file has them: the first bytes in a slot, the rest where they lie.
      expect_written({{bytes.first(100), bytes.subspan(100, size), bytes.subspan(100 + size, 7)}});
    }
  }
  std::vector<std::span<const std::byte>> many;
  for (std::size_t i = 0; i < 3000; ++i) {
    many.push_back(bytes.subspan(i * 4096, i % 7 == 0 ? 4096 : i));
  }
  expect_written(many);
}

TEST_F(DirectFileTest, ReadsUpToTheEnd) {
  const std::vector<std::byte> content = numbered(3 * kDirectAlignment + 5);
  write_test_file(path_, {reinterpret_cast<const char*>(content.data()), content.size()});
  const PageBuffer buffer(8 * kDirectAlignment);
  const DirectReader reader(path_);
  const auto read = [&](std::int64_t offset, std::size_t size) {
    const auto out = buffer.bytes().first(size);
    const std::size_t count = reader.read(offset, out);
    EXPECT_TRUE(std::ranges::equal(
        out.first(count), std::span(content).subspan(static_cast<std::size_t>(offset), count)));
    return count;
  };
  EXPECT_EQ(read(0, kDirectAlignment), kDirectAlignment);
  EXPECT_EQ(read(4096, 4 * kDirectAlignment), 2 * kDirectAlignment + 5);
  EXPECT_EQ(read(0, 8 * kDirectAlignment), content.size());
  EXPECT_EQ(read(std::int64_t{3} * 4096, kDirectAlignment), 5U);
  EXPECT_EQ(reader.read(std::int64_t{5} * 4096, buffer.bytes().first(kDirectAlignment)), 0U);
}

TEST_F(DirectFileTest, NamesTheFile) {
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { DirectReader reader(path_); }),
              HasSubstr(path_.string() + ": No such file or directory"));
  const FileDescriptor closed;
  EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { DirectWriter writer(closed, 1, path_); }),
              HasSubstr("cannot write " + path_.string() + ": Bad file descriptor"));
}

// As file systems over a network may.
TEST(DirectReaderTest, ShortReadsAreNotTheEnd) {
  const TestDirectory root;
  const std::filesystem::path path = root.path() / "file";
  std::string text(3 * kDirectAlignment + 123, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i % 251);
  }
  write_test_file(path, text);
  const DirectReader reader(path);
  PageBuffer buffer(4 * kDirectAlignment);
  for (const std::int64_t most : {1000, 4096, 4097}) {
    const Faults faults({{.call = FaultCall::kRead,
                          .path = path.string(),
                          .times = Fault::kAlways,
                          .most_bytes = most}});
    const std::span<std::byte> out = buffer.bytes().first(4 * kDirectAlignment);
    std::ranges::fill(out, std::byte{0xff});
    ASSERT_EQ(reader.read(0, out), text.size()) << most;
    EXPECT_EQ(std::memcmp(out.data(), text.data(), text.size()), 0);
    EXPECT_GT(faults.hits(), 3);
  }
}

}  // namespace
}  // namespace tessera
