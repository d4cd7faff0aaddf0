#include "tessera/dataset/corpus_input.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;

class InputFilesTest : public ::testing::Test {
 protected:
  void write(const std::string& name, std::string_view text) const {
    write_test_file(root_ / name, text);
  }

  InputFiles find(const std::string& name, DataFormat wanted = DataFormat::kAuto) const {
    const std::filesystem::path path = root_ / name;
    return input_files({&path, 1}, wanted);
  }

  std::vector<std::string> names(const InputFiles& input) const {
    std::vector<std::string> result;
    for (const InputFile& file : input.files) {
      result.push_back(std::filesystem::relative(file.path, root_).string());
    }
    return result;
  }

  TestDirectory directory_;
  std::filesystem::path root_ = directory_.path();
};

TEST_F(InputFilesTest, LeavesOutWhatHasNothingAndSaysSo) {
  write("a.txt", "text");
  write("empty.txt", "");
  std::filesystem::create_symlink("nowhere", root_ / "link.txt");
  for (const std::string name : {"", "*.txt"}) {
    const InputFiles input = find(name);
    EXPECT_THAT(names(input), ElementsAre("a.txt"));
    EXPECT_THAT(input.found,
                EndsWith(": 1 file (1 text), 1 empty, 1 of links to nothing left out"));
  }
  EXPECT_THAT(names(find("empty.txt")), ElementsAre("empty.txt")) << "as it was named";
  std::filesystem::remove(root_ / "a.txt");
  EXPECT_THAT(
      error_of(ErrorCode::kInvalidData, [&] { find(""); }),
      EndsWith("has no files to read, expected one at least (1 empty, 1 of links to nothing "
               "left out)"));
}

TEST_F(InputFilesTest, OfAFolderOfIdsLeavesOutText) {
  write("ids.bin", "abcd");
  write("README.md", "These are ids.");
  write("meta.JSON", "{}");
  const InputFiles input = find("", DataFormat::kTokens);
  EXPECT_THAT(names(input), ElementsAre("ids.bin"));
  EXPECT_THAT(input.found, EndsWith(": 1 file (1 tokens), 2 of other names left out"));
}

}  // namespace
}  // namespace tessera
