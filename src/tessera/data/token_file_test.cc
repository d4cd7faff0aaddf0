#include "tessera/data/token_file.h"

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"

namespace tessera {
namespace {

using testing::ElementsAreArray;
using testing::IsEmpty;

TEST(TokenFile, HoldsWhatWasAppendedAcrossWrites) {
  const TestDirectory directory;
  TokenFile file(directory.path());
  std::vector<std::int32_t> expected;
  for (std::int32_t part = 0; part < 7; ++part) {  // 2.8 MB: several writes, the last one partial
    std::vector<std::int32_t> tokens(100'000);
    std::iota(tokens.begin(), tokens.end(), part * 1000);
    file.append(tokens);
    expected.insert(expected.end(), tokens.begin(), tokens.end());
  }
  file.seal();
  ASSERT_EQ(file.size(), expected.size());
  EXPECT_THAT(file, ElementsAreArray(expected));
}

TEST(TokenFile, LeavesNoNameBehind) {
  const TestDirectory directory;
  TokenFile file(directory.path());
  file.append(std::vector<std::int32_t>{1, 2, 3});
  file.seal();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(TokenFile, MayBeEmpty) {
  TokenFile file;
  file.seal();
  EXPECT_THAT(file, IsEmpty());
}

TEST(TokenFile, NamesTheDirectoryThatCannotHoldIt) {
  const TestDirectory directory;
  const std::filesystem::path missing = directory.path() / "missing";
  try {
    const TokenFile file(missing);
    FAIL() << "a file was made in a directory that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeviceError);
    EXPECT_THAT(error.message(), testing::HasSubstr(missing.string()));
  }
}

}  // namespace
}  // namespace tessera
