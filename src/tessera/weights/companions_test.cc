#include "tessera/weights/companions.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

const std::vector<std::string> kNames = {"config.json",
                                         "generation_config.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "chat_template.jinja"};

class CompanionsTest : public testing::Test {
 protected:
  CompanionsTest() {
    fs::create_directory(model_);
    fs::create_directory(kept_);
  }

  std::string refusal() const {
    return error_of(ErrorCode::kInvalidData, [&] { const Companions companions(model_); });
  }

  TestDirectory directory_;
  fs::path root_ = fs::canonical(directory_.path());
  fs::path model_ = root_ / "model";
  fs::path kept_ = root_ / "kept";
};

TEST_F(CompanionsTest, AreKeptAsTheyCame) {
  write_test_file(model_ / "generation_config.json", "{\n  \"eos_token_id\": [2, 3] }\n");
  write_test_file(model_ / "chat_template.jinja", "{% for m in messages %}\xC3\xA9{% endfor %}");
  Companions(model_).keep(kept_);
  const fs::path folder = kept_ / "hugging_face";
  for (const char* const name : {"generation_config.json", "chat_template.jinja"}) {
    EXPECT_EQ(read_file(folder / name), read_file(model_ / name));
  }
  EXPECT_FALSE(fs::exists(folder / "config.json"));
}

// A file that the reader of a downloaded directory may read, and its maker may not.
TEST_F(CompanionsTest, LinksDoNotCarryPrivateFilesOut) {
  write_test_file(root_ / "secret.json", R"({"key": "private"})");
  for (const std::string& name : kNames) {
    for (const fs::path& target : {root_ / "secret.json", fs::path("../secret.json")}) {
      fs::create_symlink(target, model_ / name);
      EXPECT_THAT(refusal(),
                  testing::StartsWith((model_ / name).string() + " is a link to " +
                                      (root_ / "secret.json").string() + ", which is not part of"));
      fs::remove(model_ / name);
    }
    fs::create_symlink("../gone.json", model_ / name);
    EXPECT_EQ(refusal(), (model_ / name).string() + " is not a regular file");
    fs::remove(model_ / name);
  }
}

TEST_F(CompanionsTest, ComeFromACacheOfTheHub) {
  const fs::path snapshot = root_ / "models--a--b" / "snapshots" / "0123";
  fs::create_directories(snapshot);
  fs::create_directories(root_ / "models--a--b" / "blobs");
  write_test_file(root_ / "models--a--b" / "blobs" / "4567", R"({"pad_token": "x"})");
  fs::create_symlink("../../blobs/4567", snapshot / "special_tokens_map.json");
  Companions(snapshot).keep(kept_);
  const fs::path copy = kept_ / "hugging_face" / "special_tokens_map.json";
  EXPECT_FALSE(fs::is_symlink(copy));
  EXPECT_EQ(read_file(copy), R"({"pad_token": "x"})");
}

TEST_F(CompanionsTest, AreWhatTheirNamesSay) {
  const fs::path json = model_ / "tokenizer_config.json";
  write_test_file(json, "-----BEGIN OPENSSH PRIVATE KEY-----\n");
  EXPECT_THAT(refusal(), testing::StartsWith(json.string() + ": not JSON at byte "));
  write_test_file(json, "[1, 2]");
  EXPECT_EQ(refusal(), json.string() + ": byte 0: found a JSON array, expected an object");
  fs::remove(json);
  const fs::path text = model_ / "chat_template.jinja";
  for (const char* const bytes : {"ab\xFF", "ab\xC3"}) {
    write_test_file(text, bytes);
    EXPECT_EQ(refusal(), text.string() + ": byte 2: found no UTF-8 text, expected a chat template");
  }
  write_test_file(text, std::string_view("ab\0c", 4));
  EXPECT_THAT(refusal(), HasSubstr("byte 2: found no UTF-8 text"));
  write_test_file(text, "");
  EXPECT_NO_THROW(const Companions companions(model_));
  fs::resize_file(text, (std::uintmax_t{16} << 20U) + 1);
  EXPECT_EQ(refusal(), text.string() + ": found 16777217 bytes, expected at most 16777216");
  fs::remove(text);
  fs::create_directory(text);
  EXPECT_EQ(refusal(), text.string() + " is not a regular file");
}

}  // namespace
}  // namespace tessera
