// That the faults of tests reach what they are to reach: the library's calls, the C++ library's,
// threads.

#include "tessera/base/testing/faults.h"

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/direct_file.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(FaultsTest, FailTheCallsThatTheyName) {
  const TestDirectory root;
  const fs::path path = root.path() / "file";
  for (const auto& [call, words] : {std::pair(FaultCall::kOpen, "cannot create"),
                                    std::pair(FaultCall::kWrite, "cannot write"),
                                    std::pair(FaultCall::kSync, "cannot flush"),
                                    std::pair(FaultCall::kRename, "cannot rename")}) {
    const Faults faults({{.call = call, .path = root.path().string(), .error = ENOSPC}});
    EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { write_file_atomic(path, "text"); }),
                AllOf(HasSubstr(words), HasSubstr("No space left on device")));
    EXPECT_EQ(faults.hits(), 1);
    EXPECT_FALSE(fs::exists(path));
  }
  write_file_atomic(path, "text");
  EXPECT_EQ(read_file(path), "text");
}

TEST(FaultsTest, ReachTheCxxLibrary) {
  const TestDirectory root;
  fs::create_directories(root.path() / "a" / "b");
  write_test_file(root.path() / "a" / "b" / "file", "text");
  std::error_code error;
  {
    const Faults faults({{.call = FaultCall::kRemove, .path = "b/file", .error = EIO}});
    fs::remove_all(root.path() / "a", error);
    EXPECT_EQ(error.value(), EIO);
    EXPECT_EQ(faults.hits(), 1);
  }
  {
    const Faults faults({{.call = FaultCall::kRename, .path = "/a", .error = EXDEV}});
    fs::rename(root.path() / "a", root.path() / "c", error);
    EXPECT_EQ(error.value(), EXDEV);
  }
  const Faults faults({{.call = FaultCall::kThread, .after = 1, .error = EAGAIN}});
  std::thread([] {}).join();
  EXPECT_THROW(std::thread([] {}).join(), std::system_error);
  EXPECT_EQ(faults.hits(), 1);
}

TEST(FaultsTest, CountAndShorten) {
  const TestDirectory root;
  const fs::path path = root.path() / "file";
  const std::string text(1000, 'x');
  const Faults faults({{.call = FaultCall::kWrite,
                        .path = path.string(),
                        .after = 1,
                        .times = Fault::kAlways,
                        .most_bytes = 10},
                       {.path = path.string()}});
  AtomicFile file(path);
  file.write("first");
  file.write(text);
  file.commit();
  EXPECT_EQ(read_file(path), "first" + text);
  EXPECT_EQ(faults.hits(), 100);
  // open, 101 writes, sync, rename, and the directory's sync has another path
  EXPECT_EQ(faults.calls(1), 104);
}

TEST(FaultsTest, SayHowMuchOfADiskIsFree) {
  const TestDirectory root;
  const Faults faults(
      {{.call = FaultCall::kSpace, .path = root.path().string(), .most_bytes = 1 << 20}});
  EXPECT_EQ(fs::space(root.path()).available, 1U << 20U);
  EXPECT_EQ(faults.hits(), 1);
  EXPECT_GT(fs::space(root.path()).available, 1U << 20U) << "once, if this disk is not full";
}

TEST(FaultsTest, AreReadFromText) {
  const std::vector<Fault> faults = parse_faults(
      "write path=.safetensors after=2 times=all errno=28;thread errno=11; change signal=9 "
      "delay=0.5 ;read most=1");
  ASSERT_EQ(faults.size(), 4U);
  EXPECT_EQ(faults[0].call, FaultCall::kWrite);
  EXPECT_EQ(faults[0].path, ".safetensors");
  EXPECT_EQ(faults[0].after, 2);
  EXPECT_EQ(faults[0].times, Fault::kAlways);
  EXPECT_EQ(faults[0].error, 28);
  EXPECT_EQ(faults[1].call, FaultCall::kThread);
  EXPECT_EQ(faults[2].call, FaultCall::kChange);
  EXPECT_EQ(faults[2].signal, 9);
  EXPECT_EQ(faults[2].delay_seconds, 0.5);
  EXPECT_EQ(faults[3].most_bytes, 1);
  EXPECT_THROW(parse_faults("write errno=x"), std::invalid_argument);
  EXPECT_THROW(parse_faults("wirte errno=1"), std::invalid_argument);
}

}  // namespace
}  // namespace tessera
