#include "tessera/resolve/start_checks.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(StartChecks, ARunFileInAnotherRunsDirectoryIsNamed) {
  const TestDirectory directory;
  const std::filesystem::path renamed = directory.path() / "renamed";
  std::filesystem::create_directories(renamed / "checkpoints");
  RunConfig config;
  config.origins.file = renamed / "config.toml";
  config.run.dir = directory.path() / "old";
  EXPECT_THAT(other_directory(config), HasSubstr("--run.dir=" + renamed.string() + " goes on"));
  config.run.dir = renamed / "../renamed";
  EXPECT_EQ(other_directory(config), "");
  config.run.dir = directory.path() / "old";
  config.origins.file = directory.path() / "run.toml";
  EXPECT_EQ(other_directory(config), "") << "no run lies there";
  config.origins.file.clear();
  EXPECT_EQ(other_directory(config), "");
}

TEST(StartChecks, SequencesAreNotLongerThanTheData) {
  const TestDirectory directory;
  write_test_file(directory.path() / "a.txt", std::string(1000, 'x'));
  RunConfig config;
  config.data.files = {directory.path() / "a.txt"};
  config.data.sequence_length = 8000;
  require_enough_bytes(config);
  config.data.sequence_length = 100'000'000;
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { require_enough_bytes(config); }),
              HasSubstr("data.sequence_length: found 100000000, and the data are of 1,000 bytes"));
  config.data.files.push_back(directory.path() / "none.txt");
  require_enough_bytes(config);
}

}  // namespace
}  // namespace tessera
