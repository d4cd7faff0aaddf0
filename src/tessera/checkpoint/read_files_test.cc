#include "tessera/checkpoint/read_files.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/testing/faults.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// All that loads, verifies, imports or exports reads this way.
TEST(ReadFiles, ASlowDiskIsToldOf) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "weights";
  write_test_file(path, std::string(64U << 10U, 'x'));
  const std::array files = {FileRead{.path = path, .size_bytes = 64 << 10, .digest = true}};
  testing::internal::CaptureStderr();
  read_files(files);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
  const Faults faults({{.call = FaultCall::kRead, .path = "weights", .delay_seconds = 2.1}});
  testing::internal::CaptureStderr();
  read_files(files);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("reading tensors: 64.0 KiB of 64.0 KiB (100 %)"));
  EXPECT_EQ(faults.hits(), 1);
}

// With the threads that the system gives, or an error: nobody waits for those that it did not.
TEST(ReadFiles, ThreadsThatTheSystemRefusesAreDoneWithout) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "weights";
  write_test_file(path, std::string(64U << 10U, 'x'));
  const std::array files = {FileRead{.path = path, .size_bytes = 64 << 10, .digest = true}};
  const std::optional<FileDigest> digest = read_files(files).front();
  ASSERT_TRUE(digest);
  for (const std::int64_t given : {1, 2}) {
    const Faults faults(
        {{.call = FaultCall::kThread, .after = given, .times = Fault::kAlways, .error = EAGAIN}});
    EXPECT_EQ(read_files(files).front()->xxh3_128, digest->xxh3_128) << given;
    EXPECT_GT(faults.hits(), 0) << given;
  }
  const Faults faults({{.call = FaultCall::kThread, .times = Fault::kAlways, .error = EAGAIN}});
  EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { read_files(files); }),
              AllOf(HasSubstr("the system gives no thread to read "), HasSubstr("weights")));
}

}  // namespace
}  // namespace tessera
