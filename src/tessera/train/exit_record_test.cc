#include "tessera/train/exit_record.h"

#include <cstdint>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"

namespace tessera {
namespace {

template <class Exception>
Error converted(const Exception& exception) {
  return to_error(std::make_exception_ptr(exception));
}

TEST(ToError, KeepsWhatMustBeKnown) {
  Error mine(ErrorCode::kInvalidData, "bad line");
  mine.add_context("in a.txt");
  EXPECT_EQ(converted(mine).code(), ErrorCode::kInvalidData);
  EXPECT_STREQ(converted(mine).what(), "bad line (in a.txt)");
  const Error refused = converted(std::filesystem::filesystem_error(
      "status", "/closed/x", std::make_error_code(std::errc::permission_denied)));
  EXPECT_EQ(refused.code(), ErrorCode::kDeviceError);
  EXPECT_EQ(refused.message(), "cannot access /closed/x: Permission denied");
  EXPECT_EQ(converted(std::bad_alloc()).code(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(converted(std::runtime_error("odd")).code(), ErrorCode::kInternal);
  EXPECT_EQ(converted(std::runtime_error("odd")).message(), "unexpected: odd");
}

TEST(ExitRecord, SaysWhatFailed) {
  const TestDirectory directory;
  std::optional<std::int64_t> step;
  const auto failed = [&] {
    EXPECT_THROW(with_exit_record(directory.path(),
                                  step,
                                  []() -> int { fail(ErrorCode::kInvalidData, "bad \"{}\"", 1); }),
                 Error);
    return read_file(directory.path() / "exit-0.json");
  };
  EXPECT_EQ(failed(),
            "{\"rank\":0,\"exit_code\":3,\"error\":\"invalid data\",\"message\":\"bad "
            "\\\"1\\\"\"}\n");
  step = 12;
  EXPECT_EQ(failed(),
            "{\"rank\":0,\"exit_code\":3,\"error\":\"invalid data\",\"message\":\"bad "
            "\\\"1\\\"\",\"step\":12}\n");
}

TEST(ExitRecord, ThatCannotBeWrittenHidesNoError) {
  const auto body = []() -> int { fail(ErrorCode::kDiverged, "it"); };
  try {
    with_exit_record("/proc/none", std::nullopt, body);
    FAIL() << "the error is lost";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDiverged);
  }
}

}  // namespace
}  // namespace tessera
