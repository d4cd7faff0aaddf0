// What stands beside a tokenizer: added tokens, and the files of transformers.

#include "tessera/tokenizer/side_files.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/test_goldens.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/tokenizer/tokenizer_json.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

// transformers' slow tokenizers: what stands beside a model's pieces, and is kept with them.
TEST(TokenizerFiles, TokensBesideASentencePieceModel) {
  const TestDirectory directory;
  const std::filesystem::path model = directory.path() / "tokenizer.model";
  write_test_file(model, read_file(golden_path("sentencepiece.model")));
  const Ids plain = Tokenizer::load(model).encode("the light");
  write_test_file(directory.path() / "added_tokens.json",
                  R"({"<|im_start|>": 500, "<|im_end|>": 503})");
  write_test_file(directory.path() / "special_tokens_map.json",
                  R"({"eos_token": {"content": "<|im_end|>"}, "bos_token": "<s>"})");
  const Tokenizer tokenizer = Tokenizer::load(directory.path());
  EXPECT_EQ(tokenizer.vocab_size(), 504);
  EXPECT_THAT(tokenizer.holes(), ElementsAre(501, 502));
  EXPECT_FALSE(tokenizer.is_special(500));
  EXPECT_TRUE(tokenizer.is_special(503));
  // One that is not special is found in any text, the other on request; words begin anew behind it.
  Ids expected = {500};
  expected.insert(expected.end(), plain.begin(), plain.end());
  EXPECT_EQ(tokenizer.encode("<|im_start|>the light"), expected);
  expected.push_back(503);
  EXPECT_EQ(tokenizer.encode("<|im_start|>the light<|im_end|>", {.parse_special = true}), expected);
  EXPECT_EQ(std::ranges::count(tokenizer.encode("the<|im_end|>"), 503), 0);
  EXPECT_EQ(tokenizer.decode(expected, {.skip_special = false}), "<|im_start|>the light<|im_end|>");
  EXPECT_EQ(tokenizer.spelling(503), "<|im_end|>");
  expect_error([&] { tokenizer.decode(Ids{502}); },
               ErrorCode::kInvalidArgument,
               "id 0 of 1 to decode is 502, which belongs to no token");
  // What a run keeps is one file under another name; an export has the files again.
  write_test_file(directory.path() / "kept.json", read_tokenizer_file(directory.path()));
  const Tokenizer kept = Tokenizer::load(directory.path() / "kept.json");
  EXPECT_EQ(kept.encode("<|im_start|>the light<|im_end|>", {.parse_special = true}), expected);
  const TestDirectory out;
  export_tokenizer(directory.path() / "kept.json", out.path());
  EXPECT_EQ(read_file(out.path() / "tokenizer.model"),
            read_file(golden_path("sentencepiece.model")));
  EXPECT_EQ(Tokenizer::load(out.path()).vocab_size(), 504);
}

// added_tokens_decoder counts in place of added_tokens.json, with its flags.
TEST(TokenizerFiles, TokenizerConfigBesideAModel) {
  const TestDirectory directory;
  write_test_file(directory.path() / "tokenizer.model",
                  read_file(golden_path("sentencepiece.model")));
  write_test_file(directory.path() / "added_tokens.json", R"({"<|x|>": 500})");
  const std::filesystem::path config = directory.path() / "tokenizer_config.json";
  const auto load_with = [&](const std::string& text) {
    write_test_file(config, text);
    return Tokenizer::load(directory.path());
  };
  const Tokenizer tokenizer = load_with(R"({"added_tokens_decoder": {
      "1": {"content": "<s>", "special": true}, "2": {"content": "</s>", "rstrip": true},
      "500": {"content": "<|u|>", "special": true, "rstrip": true, "normalized": false}}})");
  EXPECT_EQ(tokenizer.vocab_size(), 501);
  EXPECT_EQ(tokenizer.spelling(500), "<|u|>");
  EXPECT_EQ(tokenizer.encode("<|u|> \n</s>  ", {.parse_special = true}), (Ids{500, 2}));
  const auto refusal = [&](const std::string& text) {
    return error_of(ErrorCode::kInvalidData, [&] { load_with(text); });
  };
  EXPECT_THAT(
      refusal(R"({"added_tokens_decoder": {"7": {"content": "<|u|>"}}})"),
      HasSubstr("the added token \"<|u|>\" has the id 7, which is that of the model's piece"));
  EXPECT_THAT(refusal(R"({"added_tokens_decoder": {"x": {"content": "<|u|>"}}})"),
              HasSubstr("/added_tokens_decoder/x is no id (in " + config.string()));
  EXPECT_THAT(refusal(R"({"added_tokens_decoder": {"600": {}}})"),
              HasSubstr("/added_tokens_decoder/600 has no \"content\""));
  EXPECT_THAT(refusal("[]"), HasSubstr("tokenizer_config.json holds array, expected an object"));
  write_test_file(directory.path() / "added_tokens.json", R"({"<|x|>": "500"})");
  EXPECT_THAT(refusal("{}"), HasSubstr("gives \"<|x|>\" the id \"500\", expected a whole number"));
}

TEST(TokenizerFiles, TokensBesideAPair) {
  const TestDirectory directory;
  const Json json = Json::parse(format_tokenizer_json(
      train_bpe(read_file(golden_path("corpus.txt")), {.vocab_size = 300, .special_tokens = {}})
          .spec()));
  write_test_file(directory.path() / "vocab.json", json["model"]["vocab"].dump());
  std::string merges;
  for (const Json& merge : json["model"]["merges"]) {
    merges += merge.get<std::string>() + "\n";
  }
  write_test_file(directory.path() / "merges.txt", merges);
  write_test_file(directory.path() / "added_tokens.json",
                  R"({"<|im_start|>": 300, "<|im_end|>": 301})");
  write_test_file(directory.path() / "tokenizer_config.json",
                  R"({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"})");
  const Tokenizer tokenizer = Tokenizer::load(directory.path());
  EXPECT_EQ(tokenizer.vocab_size(), 302);
  EXPECT_TRUE(tokenizer.is_special(301));
  EXPECT_FALSE(tokenizer.is_special(300));
  EXPECT_EQ(tokenizer.spec().splits.front().pattern, kQwenPattern);
  EXPECT_EQ(tokenizer.encode("<|im_start|><|im_end|>", {.parse_special = true}), (Ids{300, 301}));
  write_test_file(directory.path() / "kept", read_tokenizer_file(directory.path()));
  EXPECT_EQ(Tokenizer::load(directory.path() / "kept").spec(), tokenizer.spec());
}

class TokenizerJsonBesideTest : public testing::Test {
 protected:
  TokenizerJsonBesideTest() {
    write_test_file(
        directory_.path() / "tokenizer.json",
        format_tokenizer_json(
            train_bpe("", {.vocab_size = 258, .special_tokens = {"<|a|>", "<|b|>"}}).spec()));
  }

  Tokenizer load_with(const std::string& name, const std::string& text) const {
    write_test_file(directory_.path() / name, text);
    return Tokenizer::load(directory_.path());
  }

  std::string refusal(ErrorCode code, const std::string& name, const std::string& text) const {
    return error_of(code, [&] { load_with(name, text); });
  }

  const TestDirectory directory_;
};

// As transformers' fast tokenizers: the next id that is free.
TEST_F(TokenizerJsonBesideTest, TokensThatItLacksAreAdded) {
  const std::string own = read_file(directory_.path() / "tokenizer.json");
  const Tokenizer map = load_with("added_tokens.json", R"({"<|c|>": 258, "<|d|>": 259})");
  EXPECT_EQ(map.vocab_size(), 260);
  EXPECT_EQ(map.encode("<|d|>"), Ids{259});
  const Tokenizer decoder = load_with("tokenizer_config.json",
                                      R"({"eos_token": "<|c|>", "added_tokens_decoder": {
                    "256": {"content": "<|a|>", "special": true},
                    "258": {"content": "<|c|>", "special": true, "rstrip": true}}})");
  EXPECT_EQ(decoder.vocab_size(), 259);
  EXPECT_TRUE(decoder.is_special(258));
  EXPECT_EQ(decoder.eos(), 258);
  EXPECT_EQ(decoder.encode("a<|c|>  ", {.parse_special = true}), (Ids{64, 258}));
  EXPECT_THAT(decoder.marks().notes, testing::IsEmpty());
  write_test_file(directory_.path() / "kept", read_tokenizer_file(directory_.path()));
  EXPECT_EQ(Tokenizer::load(directory_.path() / "kept").spec(), decoder.spec());
  load_with("tokenizer_config.json",
            R"({"added_tokens_decoder": {"257": {"content": "<|b|>", "special": true}}})");
  EXPECT_EQ(read_tokenizer_file(directory_.path()), own);
}

TEST_F(TokenizerJsonBesideTest, OtherIdsAreNamed) {
  EXPECT_THAT(refusal(ErrorCode::kInvalidData, "added_tokens.json", R"({"<|c|>": 300})"),
              HasSubstr("added_tokens.json gives \"<|c|>\" the id 300; among the added tokens of "
                        "tokenizer.json it is missing, and transformers would give it 258"));
  EXPECT_THAT(load_with("added_tokens.json", R"({"<|b|>": 256, "<|a|>": 257})").marks().notes,
              ElementsAre(HasSubstr("gives \"<|a|>\" the id 257, and the tokenizer 256 (1 more")));
  EXPECT_THAT(load_with("tokenizer_config.json",
                        R"({"added_tokens_decoder": {}, "additional_special_tokens": ["<|b|>",
                            {"content": "<|x|>"}]})")
                  .marks()
                  .notes,
              ElementsAre(HasSubstr("has \"<|x|>\", which is no token of the tokenizer")));
}

TEST_F(TokenizerJsonBesideTest, PrefixSpacesAgree) {
  EXPECT_EQ(load_with("tokenizer_config.json", R"({"add_prefix_space": false})").vocab_size(), 258);
  Json json = Json::parse(read_file(directory_.path() / "tokenizer.json"));
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  write_test_file(directory_.path() / "tokenizer.json", json.dump());
  EXPECT_THAT(
      refusal(ErrorCode::kUnsupported, "tokenizer_config.json", R"({"add_prefix_space": true})"),
      HasSubstr("tokenizer_config.json is true, and /pre_tokenizer/add_prefix_space of"));
  write_test_file(directory_.path() / "tokenizer.json", read_file(golden_path("characters.json")));
  EXPECT_THAT(
      refusal(ErrorCode::kUnsupported, "tokenizer_config.json", R"({"add_prefix_space": false})"),
      HasSubstr("is false, and tokenizer.json puts a space before a text"));
  std::filesystem::remove(directory_.path() / "tokenizer.json");
  write_test_file(directory_.path() / "tokenizer.model",
                  read_file(golden_path("sentencepiece.model")));
  EXPECT_THAT(
      refusal(ErrorCode::kUnsupported, "tokenizer_config.json", R"({"add_prefix_space": false})"),
      HasSubstr("is false, and tokenizer.model puts a space before a text"));
  EXPECT_THAT(load_with("tokenizer_config.json", R"({"legacy": false})").marks().notes,
              ElementsAre(HasSubstr("legacy of ")));
}

TEST_F(TokenizerJsonBesideTest, PairsOfOtherClassesAreRefused) {
  std::filesystem::remove(directory_.path() / "tokenizer.json");
  write_test_file(directory_.path() / "vocab.json", R"({"a": 0})");
  write_test_file(directory_.path() / "merges.txt", "");
  for (const char* const other : {"RobertaTokenizer", "CLIPTokenizerFast", "BloomTokenizerFast"}) {
    EXPECT_THAT(refusal(ErrorCode::kUnsupported,
                        "tokenizer_config.json",
                        Json{{"tokenizer_class", other}}.dump()),
                HasSubstr(other));
  }
  EXPECT_THAT(
      refusal(ErrorCode::kUnsupported, "tokenizer_config.json", R"({"add_prefix_space": true})"),
      HasSubstr("no space is put before a text of vocab.json and merges.txt"));
}

}  // namespace
}  // namespace tessera
