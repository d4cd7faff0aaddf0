#include "tessera/train/session_log.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/machine.h"
#include "tessera/base/test_directory.h"

namespace tessera {
namespace {

TEST(SessionLog, TellsEachSession) {
  const TestDirectory directory;
  EXPECT_TRUE(read_sessions(directory.path()).empty());
  log_session_start(directory.path(), {.step = 0, .parameters = 1234});
  // A kill, and a power cut that left half a line.
  const std::filesystem::path path = directory.path() / "sessions.jsonl";
  write_test_file(path, read_file(path) + "{\"event\":\"sta");
  log_session_start(
      directory.path(),
      {.step = 8, .parameters = 1234, .predicted_step = 0.1, .constants = "measured"});
  log_session_end(directory.path(), {.step = 12, .stopped = true});

  const std::vector<Session> sessions = read_sessions(directory.path());
  ASSERT_EQ(sessions.size(), 2U);
  EXPECT_EQ(sessions[0].start.step, 0);
  EXPECT_EQ(sessions[0].start.parameters, 1234);
  EXPECT_FALSE(sessions[0].end);
  EXPECT_FALSE(sessions[0].start.predicted_step);
  EXPECT_EQ(sessions[1].start.step, 8);
  EXPECT_EQ(sessions[1].start.predicted_step, 0.1);
  EXPECT_EQ(sessions[1].start.constants, "measured");
  EXPECT_EQ(sessions[1].cores, usable_cores());
  EXPECT_EQ(sessions[1].host, host_name());
  EXPECT_THAT(sessions[1].started, testing::MatchesRegex("....-..-..T..:..:..Z"));
  const auto end = sessions[1].end;
  if (!end) {
    FAIL() << "the second session has no end";
  }
  EXPECT_EQ(end->step, 12);
  EXPECT_TRUE(end->stopped);
}

TEST(SessionLog, KnowsSinceWhenTheSameDataAreValidatedOn) {
  const TestDirectory directory;
  const auto since = [&](const std::string& validation) {
    return validated_alike_since(read_sessions(directory.path()), validation);
  };
  const auto start = [&](std::int64_t step, const std::string& validation) {
    log_session_start(directory.path(), {.step = step, .parameters = 1, .validation = validation});
  };
  EXPECT_EQ(since("a"), 0);
  start(0, "a");
  start(10, "");
  start(20, "a");
  EXPECT_EQ(since("a"), 0);
  EXPECT_GT(since("b"), 1'000'000) << "no session has yet";
  start(30, "b");
  start(40, "b");
  EXPECT_EQ(since("b"), 30);
  EXPECT_GT(since("a"), 1'000'000);
  start(50, "a");
  EXPECT_EQ(since("a"), 50);
}

TEST(SessionLog, LinesOfOthersArePassedOver) {
  const TestDirectory directory;
  write_test_file(directory.path() / "sessions.jsonl",
                  "notes\n{}\n[]\n{\"event\":\"end\"}\n{\"event\":\"end\",\"step\":\"x\"}\n");
  EXPECT_TRUE(read_sessions(directory.path()).empty());
}

}  // namespace
}  // namespace tessera
