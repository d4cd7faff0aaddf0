#include "tessera/launch/exit_record.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"

namespace tessera {
namespace {

TEST(ExitRecord, SaysWhatFailed) {
  const TestDirectory directory;
  std::optional<std::int64_t> step;
  const auto failed = [&] {
    EXPECT_THROW(with_exit_record({.run_dir = directory.path(), .rank = 3},
                                  step,
                                  []() -> int { fail(ErrorCode::kInvalidData, "bad \"{}\"", 1); }),
                 Error);
    return read_file(directory.path() / "exit-3.json");
  };
  EXPECT_EQ(failed(),
            "{\"rank\":3,\"exit_code\":3,\"error\":\"invalid data\",\"message\":\"bad "
            "\\\"1\\\"\"}\n");
  step = 12;
  EXPECT_EQ(failed(),
            "{\"rank\":3,\"exit_code\":3,\"error\":\"invalid data\",\"message\":\"bad "
            "\\\"1\\\"\",\"step\":12}\n");
}

TEST(ExitRecord, OfAnEarlierRunIsRemovedWhateverItsRank) {
  const TestDirectory directory;
  for (const char* name : {"exit-0.json", "exit-17.json", "exit-a.json", "exit-.json"}) {
    write_file_atomic(directory.path() / name, "{}");
  }
  remove_exit_records(directory.path(), 0, 1);
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "exit-0.json"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "exit-17.json"));
  EXPECT_TRUE(std::filesystem::exists(directory.path() / "exit-a.json"));
  EXPECT_TRUE(std::filesystem::exists(directory.path() / "exit-.json"));
}

// One process of a launch may have failed before another one starts.
TEST(ExitRecord, OfAnotherProcessOfTheLaunchStays) {
  const TestDirectory directory;
  const auto leave_all = [&] {
    for (const char* name : {"exit-0.json", "exit-1.json", "exit-2.json", "exit-3.json"}) {
      write_file_atomic(directory.path() / name, "{}");
    }
  };
  const auto is_there = [&](int rank) {
    return std::filesystem::exists(exit_record_path(directory.path(), rank));
  };
  leave_all();
  remove_exit_records(directory.path(), 0, 3);
  EXPECT_FALSE(is_there(0));
  EXPECT_TRUE(is_there(1));
  EXPECT_TRUE(is_there(2));
  EXPECT_FALSE(is_there(3)) << "no process has it";
  leave_all();
  remove_exit_records(directory.path(), 2, 3);
  EXPECT_TRUE(is_there(0));
  EXPECT_TRUE(is_there(1));
  EXPECT_FALSE(is_there(2));
  EXPECT_TRUE(is_there(3));
}

TEST(ExitRecord, ThatCannotBeWrittenHidesNoError) {
  const auto body = []() -> int { fail(ErrorCode::kDiverged, "it"); };
  try {
    with_exit_record({.run_dir = "/proc/none"}, std::nullopt, body);
    FAIL() << "the error is lost";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDiverged);
  }
}

}  // namespace
}  // namespace tessera
