#include "tessera/resolve/stored_tokenizer.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TokenizerOfACheckpoint : public testing::Test {
 protected:
  TokenizerOfACheckpoint() {
    std::filesystem::create_directories(checkpoint_);
    write_test_file(other_, "other");
  }

  TestDirectory directory_;
  std::filesystem::path run_ = std::filesystem::canonical(directory_.path()) / "run";
  std::filesystem::path checkpoint_ = run_ / "checkpoints" / "step-00000004";
  std::filesystem::path other_ = directory_.path() / "other.json";
};

TEST_F(TokenizerOfACheckpoint, LiesInItsRunDirectory) {
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_, other_), other_) << "there is no copy";
  write_test_file(tokenizer_copy(run_), "own");
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_, other_), run_ / "tokenizer.json");
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_ / "", other_), run_ / "tokenizer.json");
  write_test_file(tokenizer_copy(checkpoint_), "own");
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_, other_), run_ / "tokenizer.json");
}

// As where it was moved beside another run, or another run's tokenizer was put there.
TEST_F(TokenizerOfACheckpoint, IsItsOwnBesideAnother) {
  write_test_file(tokenizer_copy(run_), "another");
  write_test_file(tokenizer_copy(checkpoint_), "own");
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_, other_), tokenizer_copy(checkpoint_));
  std::filesystem::remove(tokenizer_copy(run_));
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_, other_), tokenizer_copy(checkpoint_));
}

TEST_F(TokenizerOfACheckpoint, IsTheOnlyOne) {
  write_test_file(tokenizer_copy(run_), "own");
  const CheckpointMeta meta{.tokenizer = tokenizer_checksum(tokenizer_copy(run_))};
  require_tokenizer(tokenizer_copy(run_), checkpoint_, meta);
  require_tokenizer(other_, checkpoint_, {});
  try {
    require_tokenizer(other_, checkpoint_, meta);
    FAIL() << "another tokenizer is taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr(other_.string() + " is not the tokenizer that " +
                                checkpoint_.string() + " was trained with"),
                      HasSubstr(meta.tokenizer),
                      HasSubstr("; that one is " + tokenizer_copy(run_).string())));
  }
}

TEST_F(TokenizerOfACheckpoint, ACopyThatIsDamagedIsNamed) {
  write_test_file(tokenizer_copy(checkpoint_), "own");
  const CheckpointMeta meta{.tokenizer = tokenizer_checksum(tokenizer_copy(checkpoint_))};
  require_own_tokenizer(checkpoint_, meta);
  write_test_file(tokenizer_copy(checkpoint_), "oXn");
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { require_own_tokenizer(checkpoint_, meta); }),
              AllOf(HasSubstr(tokenizer_copy(checkpoint_).string() + ": found checksum "),
                    HasSubstr("expected " + meta.tokenizer)));
  EXPECT_THAT(error_of(ErrorCode::kInvalidData,
                       [&] { require_tokenizer(tokenizer_copy(checkpoint_), checkpoint_, meta); }),
              HasSubstr("; the copy " + tokenizer_copy(checkpoint_).string() +
                        " is damaged or was changed"));
}

}  // namespace
}  // namespace tessera
