#include "tessera/checkpoint/read_files.h"

#include <array>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_directory.h"
#include "tessera/base/testing/faults.h"

namespace tessera {
namespace {

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
              HasSubstr("reading: 64.0 KiB of 64.0 KiB (100 %)"));
  EXPECT_EQ(faults.hits(), 1);
}

}  // namespace
}  // namespace tessera
