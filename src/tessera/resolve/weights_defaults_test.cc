#include "tessera/resolve/weights_defaults.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

// A directory of GPT-2's family with a tokenizer; the weights themselves are not looked at.
class WeightsDefaultsTest : public testing::Test {
 protected:
  WeightsDefaultsTest() {
    fs::create_directory(hf_);
    write_test_file(hf_ / "config.json", R"({"model_type": "gpt2", "vocab_size": 258, "n_embd": 16,
        "n_layer": 1, "n_head": 2, "n_positions": 32})");
    write_test_file(root_ / "a.txt", "some text to read");
  }

  void save_tokenizer(const fs::path& path, const std::vector<std::string>& specials) const {
    train_bpe("abababab",
              {.vocab_size = static_cast<std::int32_t>(257 + specials.size()),
               .vocab_size_name = "vocab",
               .special_tokens = specials})
        .save(path);
  }

  RunConfig config(std::vector<std::string> keys) const {
    keys.insert(keys.end(),
                {format("--model.weights={}", hf_.string()),
                 format("--run.dir={}", (root_ / "run").string()),
                 format("--data.files={}", (root_ / "a.txt").string())});
    return with_weights_defaults(load_run_config({}, keys), ConfigUse::kRun, true);
  }

  std::string logged(const std::vector<std::string>& keys) const {
    testing::internal::CaptureStderr();
    config(keys);
    return testing::internal::GetCapturedStderr();
  }

  TestDirectory directory_;
  fs::path root_ = directory_.path();
  fs::path hf_ = root_ / "hf";
};

TEST_F(WeightsDefaultsTest, ARunTakesTheFamilyAndTheTokenizerOfItsWeights) {
  save_tokenizer(hf_ / "tokenizer.json", {"<|end|>"});
  const RunConfig found = config({});
  EXPECT_EQ(found.model.name, "gpt2");
  EXPECT_EQ(found.tokenizer.path, (hf_ / "tokenizer.json").string());
  EXPECT_THAT(logged({}), HasSubstr("that of model.weights"));
}

TEST_F(WeightsDefaultsTest, TextNeedsTheTokenizerOfTheWeightsAndNoNewOne) {
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { config({}); }),
              HasSubstr("a.txt needs a tokenizer, and model.weights = "));
  EXPECT_EQ(config({"--tokenizer.train_vocab=300"}).tokenizer.train_vocab, 300);
  save_tokenizer(hf_ / "tokenizer.json", {"<|end|>"});
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { config({"--tokenizer.train_vocab=300"}); }),
              HasSubstr("the weights have a tokenizer of their own"));
}

TEST_F(WeightsDefaultsTest, AnotherTokenizerIsWarnedOf) {
  save_tokenizer(hf_ / "tokenizer.json", {"<|end|>"});
  const fs::path other = root_ / "other.json";
  const std::string key = format("--tokenizer.path={}", other.string());
  save_tokenizer(other, {"<|end|>", "<|more|>"});
  EXPECT_EQ(logged({key}), "");
  save_tokenizer(other, {"<|stop|>"});
  EXPECT_THAT(logged({key}), HasSubstr("1 of 258 ids are other tokens (the first is "));
  EXPECT_THAT(logged({key}), HasSubstr("\"<|stop|>\", there \"<|end|>\""));
}

TEST_F(WeightsDefaultsTest, WeightsAreNoSingleFile) {
  write_test_file(root_ / "model.safetensors", "");
  EXPECT_THAT(
      error_of(ErrorCode::kInvalidConfig, [&] { weights_tokenizer(root_ / "model.safetensors"); }),
      HasSubstr("is a file, expected a directory in Hugging Face's form"));
}

}  // namespace
}  // namespace tessera
