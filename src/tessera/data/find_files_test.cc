#include "tessera/data/find_files.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;

class FindFilesTest : public ::testing::Test {
 protected:
  FindFilesTest() {
    for (const char* const name : {"b.txt",
                                   "a.txt",
                                   "B.txt",
                                   "c.md",
                                   "10/x.txt",
                                   "10/.hidden/y.txt",
                                   "10/deep/z.txt",
                                   "2/x.txt",
                                   ".secret.txt",
                                   "set.bin",
                                   "set.idx",
                                   "odd[1].txt"}) {
      std::filesystem::create_directories((root_ / name).parent_path());
      write_test_file(root_ / name, "text");
    }
    std::filesystem::create_directory(root_ / "empty");
    std::filesystem::create_directory_symlink("..", root_ / "10/up");
  }

  // Of one name, without the folder in front.
  std::vector<std::string> found(const std::string& name) const {
    const std::filesystem::path path = root_ / name;
    std::vector<std::string> files;
    const std::vector<FoundFiles> parts = find_files({&path, 1});
    for (const std::filesystem::path& file : parts.front().files) {
      files.push_back(std::filesystem::relative(file, root_).string());
    }
    return files;
  }

  std::string refusal(const std::string& name) const {
    return error_of(ErrorCode::kInvalidData, [&] { found(name); });
  }

  TestDirectory directory_;
  std::filesystem::path root_ = directory_.path();
};

TEST_F(FindFilesTest, TakesAFolderWithAllThatIsBelow) {
  EXPECT_THAT(found(""),
              ElementsAre("10/deep/z.txt",
                          "10/x.txt",
                          "2/x.txt",
                          "B.txt",
                          "a.txt",
                          "b.txt",
                          "c.md",
                          "odd[1].txt",
                          "set.bin"));
  EXPECT_THAT(found("10"), ElementsAre("10/deep/z.txt", "10/x.txt"));
  EXPECT_THAT(found("10/"), ElementsAre("10/deep/z.txt", "10/x.txt"));
}

TEST_F(FindFilesTest, TakesWhatMatchesAPattern) {
  EXPECT_THAT(found("*.txt"), ElementsAre("B.txt", "a.txt", "b.txt", "odd[1].txt"));
  EXPECT_THAT(found("[ab].*"), ElementsAre("a.txt", "b.txt"));
  EXPECT_THAT(found("?.txt"), ElementsAre("B.txt", "a.txt", "b.txt"));
  EXPECT_THAT(found("*/x.txt"), ElementsAre("10/x.txt", "2/x.txt"));
  EXPECT_THAT(found("1*"), ElementsAre("10/deep/z.txt", "10/x.txt"));
  EXPECT_THAT(
      found("**/*.txt"),
      ElementsAre("10/deep/z.txt", "10/x.txt", "2/x.txt", "B.txt", "a.txt", "b.txt", "odd[1].txt"));
  EXPECT_THAT(found("10/*"), ElementsAre("10/deep/z.txt", "10/x.txt")) << "10/up is a link";
  EXPECT_THAT(found("10/**"), ElementsAre("10/deep/z.txt", "10/x.txt"));
  EXPECT_THAT(found(".s*"), ElementsAre(".secret.txt"));
  EXPECT_THAT(found("set.*"), ElementsAre("set.bin"));
}

TEST_F(FindFilesTest, TakesAFileByItsName) {
  EXPECT_THAT(found("odd[1].txt"), ElementsAre("odd[1].txt"));
  EXPECT_THAT(found(".secret.txt"), ElementsAre(".secret.txt"));
  EXPECT_THAT(found("missing.txt"), ElementsAre("missing.txt"));
  EXPECT_THAT(found("set"), ElementsAre("set"));
}

TEST_F(FindFilesTest, RefusesWhatHasNothing) {
  EXPECT_THAT(refusal("*.json"), EndsWith("*.json matches no file, expected one at least"));
  EXPECT_THAT(refusal("no*/a.txt"), EndsWith("matches no file, expected one at least"));
  EXPECT_THAT(
      refusal("empty"),
      EndsWith("empty is a folder without files, hidden ones left out: expected data in it"));
}

}  // namespace
}  // namespace tessera
