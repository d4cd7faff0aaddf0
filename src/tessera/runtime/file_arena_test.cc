#include "tessera/runtime/file_arena.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include "tessera/base/direct_file.h"
#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/testing/faults.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kBytes = std::int64_t{3} << 20;

// Files of a directory that is in memory are refused.
class FileArenaTest : public testing::Test {
 protected:
  void SetUp() override {
    struct statfs info{};
    if (::statfs(fs::temp_directory_path().c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC) {
      GTEST_SKIP() << fs::temp_directory_path() << " is in memory: TMPDIR may name a disk";
    }
  }
};

View bytes_at(std::byte* data, std::int64_t count) {
  View view = {.dtype = DType::kU8, .num_dims = 1};
  view.data = data;
  view.sizes[0] = count;
  view.strides[0] = 1;
  return view;
}

bool is_all(std::span<const std::byte> bytes, int value) {
  return std::ranges::all_of(bytes, [&](std::byte b) { return b == std::byte(value); });
}

// The host and the queues, which go past the page cache, see what each other wrote.
TEST_F(FileArenaTest, IsOneForTheHostAndForSteps) {
  const TestDirectory root;
  FileArena arena(root.path(), kBytes);
  EXPECT_TRUE(fs::is_empty(root.path()));
  const std::span<std::byte> file(arena.data(), kBytes);
  EXPECT_TRUE(is_all(file, 0));
  std::ranges::fill(file, std::byte{1});
  arena.to_device(0, kBytes);
  PageBuffer memory(kBytes);
  FileArena::Queue queue(arena, {});
  const std::vector<View> in_file = {bytes_at(arena.data() + 8192, 5000),
                                     bytes_at(arena.data() + 65536, 8192)};
  const std::vector<View> here = {bytes_at(memory.bytes().data() + 4096, 5000),
                                  bytes_at(memory.bytes().data() + 32768, 8192)};
  queue.fetch(in_file, here);
  EXPECT_TRUE(is_all(memory.bytes().subspan(4096, 5000), 1));
  EXPECT_TRUE(is_all(memory.bytes().subspan(32768, 8192), 1));
  std::ranges::fill(memory.bytes(), std::byte{2});
  queue.store(here, in_file);
  // To the end of the page, which is the tensor's.
  EXPECT_TRUE(is_all(file.first(8192), 1));
  EXPECT_TRUE(is_all(file.subspan(8192, 8192), 2));
  EXPECT_TRUE(is_all(file.subspan(16384, 65536 - 16384), 1));
  EXPECT_TRUE(is_all(file.subspan(65536, 8192), 2));
  EXPECT_TRUE(is_all(file.subspan(65536 + 8192), 1));
  EXPECT_EQ(read_file(arena.path()).size(), static_cast<std::size_t>(kBytes));
}

TEST_F(FileArenaTest, RefusesWhatIsNoDirectoryOfADisk) {
  const TestDirectory root;
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { FileArena(root.path() / "none", kBytes); }),
              HasSubstr("memory.offload_dir: there is no directory " + root.path().string()));
  if (fs::is_directory("/dev/shm")) {
    EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { FileArena("/dev/shm", kBytes); }),
                HasSubstr("memory.offload_dir: /dev/shm is in memory (tmpfs)"));
  }
}

TEST_F(FileArenaTest, SaysHowMuchItCouldNotHave) {
  const TestDirectory root;
  const Faults faults(
      {{.call = FaultCall::kResize, .path = root.path().string(), .error = ENOSPC}});
  EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { FileArena(root.path(), kBytes); }),
              AllOf(HasSubstr("memory.offload_dir: cannot take 3.00 MiB (3,145,728 bytes) in"),
                    HasSubstr("is free: No space left on device")));
  EXPECT_EQ(faults.hits(), 1);
  EXPECT_TRUE(fs::is_empty(root.path()));
}

// Of a file system without files that have no name.
TEST_F(FileArenaTest, TakesItsNameAwayAtOnce) {
  const TestDirectory root;
  const Faults faults(
      {{.call = FaultCall::kOpen, .path = root.path().string(), .error = EOPNOTSUPP}});
  const FileArena arena(root.path(), kBytes);
  EXPECT_EQ(faults.hits(), 1);
  EXPECT_TRUE(fs::is_empty(root.path()));
}

}  // namespace
}  // namespace tessera
