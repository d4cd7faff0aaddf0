#include "tessera/base/file_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/direct_file.h"
#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/testing/faults.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kPage = kDirectAlignment;

// By io_uring, or by threads where the system says that it forbids that.
class FileQueueTest : public testing::TestWithParam<bool> {
 protected:
  FileQueueTest() : memory_(kBytes), read_(kBytes) {
    if (GetParam()) {
      forbidden_.emplace(
          std::vector<Fault>{{.call = FaultCall::kRing, .times = Fault::kAlways, .error = EPERM}});
    }
    for (std::size_t i = 0; i < kBytes; ++i) {
      memory_.bytes()[i] = static_cast<std::byte>(i * 2654435761U >> 13U);
    }
  }

  // Stretches of one page, of an odd number of pieces and of many, which lie apart in the file.
  static std::vector<FileStretch> stretches(std::span<std::byte> memory) {
    std::vector<FileStretch> result;
    std::size_t at = 0;
    for (const std::size_t pages : {std::size_t{1}, std::size_t{3}, std::size_t{700}}) {
      result.push_back({.offset = static_cast<std::int64_t>(2 * at),
                        .memory = memory.subspan(at, pages * kPage)});
      at += pages * kPage;
    }
    result.push_back(
        {.offset = static_cast<std::int64_t>(2 * at), .memory = memory.subspan(at, kBytes - at)});
    return result;
  }

  static constexpr std::size_t kBytes = std::size_t{70} << 20U;

  const TestDirectory root_;
  const std::filesystem::path path_ = root_.path() / "file";
  std::optional<Faults> forbidden_;
  FileDescriptor file_{::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600)};
  PageBuffer memory_;
  PageBuffer read_;
};

TEST_P(FileQueueTest, ReadsWhatItWrote) {
  const std::span<std::byte> known = memory_.bytes();
  FileQueue writer(file_, path_, {&known, 1});
  FileQueue reader(file_, path_);
  EXPECT_EQ(writer.why_threads(),
            GetParam() ? "Operation not permitted (containers often forbid it)" : "");
  writer.write(stretches(memory_.bytes()));
  reader.read(stretches(read_.bytes()));
  EXPECT_TRUE(std::ranges::equal(memory_.bytes().first(kBytes), read_.bytes().first(kBytes)));
  writer.write({});
}

// What fails is waited for, and the queue serves on.
TEST_P(FileQueueTest, SaysWhatFailed) {
  FileQueue queue(file_, path_);
  queue.write(stretches(memory_.bytes()));
  const FileStretch behind = {.offset = std::int64_t{1} << 40,
                              .memory = read_.bytes().first(std::size_t{64} << 20U)};
  EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { queue.read({&behind, 1}); }),
              AllOf(HasSubstr("cannot read " + path_.string()), HasSubstr("ends early")));
  const FileStretch odd = {.offset = 512, .memory = read_.bytes().first(kPage)};
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { queue.read({&odd, 1}); }),
              HasSubstr("does not begin and end with pages"));
  queue.read(stretches(read_.bytes()));
  EXPECT_TRUE(std::ranges::equal(memory_.bytes().first(kBytes), read_.bytes().first(kBytes)));
}

// One after the other, as a step's: threads that wake late find what is theirs.
TEST_P(FileQueueTest, HasManyRuns) {
  FileQueue queue(file_, path_);
  queue.write(stretches(memory_.bytes()));
  for (std::size_t i = 0; i < 3000; ++i) {
    const std::size_t pages = 1 + i % 3;
    const std::span<std::byte> here = read_.bytes().subspan(i % 100 * kPage, pages * kPage);
    std::ranges::fill(here, std::byte{0});
    const FileStretch one = {.offset = 0, .memory = here.first(kPage)};
    const FileStretch others = {.offset = 2 * std::int64_t{kPage}, .memory = here.subspan(kPage)};
    queue.read(std::vector<FileStretch>{one, others});
    ASSERT_TRUE(std::ranges::equal(here, memory_.bytes().first(here.size()))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Both, FileQueueTest, testing::Bool(), [](const auto& forbidden) {
  return forbidden.param ? "Threads" : "Ring";
});

TEST(FileQueueThreads, GoOnWhereTheSystemCutsShort) {
  const TestDirectory root;
  const std::filesystem::path path = root.path() / "file";
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  PageBuffer memory(std::size_t{3} << 20U);
  std::ranges::fill(memory.bytes(), std::byte{7});
  const FileStretch all = {.offset = 0, .memory = memory.bytes()};
  const Faults faults(
      {{.call = FaultCall::kRing, .times = Fault::kAlways, .error = EPERM},
       {.call = FaultCall::kWrite,
        .path = path.string(),
        .times = 5,
        .most_bytes = static_cast<std::int64_t>(kPage)},
       {.call = FaultCall::kRead, .path = path.string(), .times = 5, .most_bytes = 99},
       {.call = FaultCall::kWrite, .path = path.string(), .after = 40, .error = ENOSPC}});
  FileQueue queue(file, path);
  queue.write({&all, 1});
  EXPECT_EQ(faults.hits(1), 5);
  std::ranges::fill(memory.bytes(), std::byte{0});
  queue.read({&all, 1});
  EXPECT_EQ(faults.hits(2), 5);
  EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{7}; }));
  std::string failure;
  for (int i = 0; i < 40 && failure.empty(); ++i) {
    try {
      queue.write({&all, 1});
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  EXPECT_THAT(failure, AllOf(HasSubstr("cannot write"), HasSubstr("No space left on device")));
}

}  // namespace
}  // namespace tessera
