#include "tessera/dataset/run_data.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A tokenizer of 256 bytes and three special tokens.
class RunDataTest : public testing::Test {
 protected:
  RunDataTest() {
    train_bpe("", {.vocab_size = 259, .special_tokens = {"<|endoftext|>", "<|x|>", "<|y|>"}})
        .save(file_);
    config_.tokenizer.path = file_.string();
    config_.data.files = {(directory_.path() / "a.txt").string()};
    write_test_file(directory_.path() / "a.txt", "text");
  }

  std::string refusal() const {
    return error_of(ErrorCode::kInvalidConfig, [&] { run_tokenizer(config_, 259); });
  }

  TestDirectory directory_;
  std::filesystem::path file_ = directory_.path() / "tokenizer.json";
  RunConfig config_;
};

TEST_F(RunDataTest, MarksHaveRowsInTheModel) {
  const Tokenizer tokenizer = load_tokenizer(file_, 258);
  EXPECT_THAT(tokenizer.marks().eos, ElementsAre(256));
  config_.tokenizer.eos = {"<|x|>"};
  EXPECT_THAT(with_configured_marks(tokenizer, config_).marks().eos, ElementsAre(257));
  config_.tokenizer.eos = {"<|y|>"};
  EXPECT_THAT(
      error_of(ErrorCode::kInvalidConfig, [&] { with_configured_marks(tokenizer, config_); }),
      HasSubstr("tokenizer.eos: found \"<|y|>\", id 258, for which the model has no row: "
                "its ids are 0 to 257"));
}

// What only the model's configuration, or nobody, would put stays out of what it is given.
TEST_F(RunDataTest, OtherMarksWithoutRowsAreLeftOut) {
  write_test_file(directory_.path() / "tokenizer_config.json",
                  R"({"bos_token": "<|y|>", "add_bos_token": false})");
  write_test_file(directory_.path() / "generation_config.json", R"({"eos_token_id": [256, 258]})");
  const TextMarks marks = load_tokenizer(file_, 258).marks();
  EXPECT_EQ(marks.bos, std::nullopt);
  EXPECT_THAT(marks.eos, ElementsAre(256));
}

TEST_F(RunDataTest, ATokenizerThatExistsHasTheTokensOfOneThatIsTrained) {
  config_.tokenizer.train_vocab = 300;
  config_.tokenizer.train_special = {"<|x|>"};
  EXPECT_EQ(run_tokenizer(config_, 259)->vocab_size(), 259);
  config_.tokenizer.train_special = {"<|x|>", "<|z|>"};
  EXPECT_THAT(refusal(), HasSubstr("exists, so that none is trained, and has no token \"<|z|>\""));
  config_.tokenizer.train_special.clear();
  config_.tokenizer.train_chat = "chatml";
  EXPECT_THAT(refusal(), HasSubstr("has no token \"<|im_start|>\""));
}

// Before the first step, wherever it lies, and of what is held back too.
TEST_F(RunDataTest, IdsAreCheckedAtTheStart) {
  config_.tokenizer.path.clear();
  config_.data.format = DataFormat::kTokens;
  config_.data.sequence_length = 16;
  config_.data.files = {(directory_.path() / "ids").string()};
  std::string ids(200'000, '\0');
  write_test_file(directory_.path() / "ids", ids);
  EXPECT_EQ(run_sequences(config_, std::nullopt, 255).train.num_tokens(), 100'000);
  ids[std::size_t{2} * 99'000] = '\xff';
  write_test_file(directory_.path() / "ids", ids);
  EXPECT_EQ(run_sequences(config_, std::nullopt, 256).train.num_tokens(), 100'000);
  for (const double share : {0.0, 0.1}) {
    config_.data.validation_share = share;
    EXPECT_THAT(
        error_of(ErrorCode::kInvalidData, [&] { run_sequences(config_, std::nullopt, 255); }),
        HasSubstr("ids: token 99000: found id 255, expected an id from 0 to 254"));
  }
}

TEST_F(RunDataTest, MarksNeedATokenizer) {
  config_.tokenizer.path.clear();
  write_test_file(directory_.path() / "a.bin", "ab");
  config_.data.files = {(directory_.path() / "a.bin").string()};
  config_.data.format = DataFormat::kTokens;
  EXPECT_EQ(run_tokenizer(config_, 259), std::nullopt);
  config_.tokenizer.eos = {"x"};
  EXPECT_THAT(refusal(), HasSubstr("tokenizer.eos: found a token, and the run has no tokenizer"));
}

}  // namespace
}  // namespace tessera
