// What a tokenizer is read from: pipelines of a tokenizer.json, and the other formats.

#include "tessera/tokenizer/tokenizer_files.h"

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
#include "tessera/base/utf8.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/normalizer.h"
#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/tiktoken.h"
#include "tessera/tokenizer/tiktoken_families.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tessera/tokenizer/tokenizer_json.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

// Written by the scripts tests/golden/make_*_goldens.py.
std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/tokenizer" / name;
}

Json golden(const std::string& name) {
  return Json::parse(read_file(golden_path(name)));
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

template <class Body>
void expect_error(const Body& body, ErrorCode code, const std::string& message) {
  const std::string what = error_of(code, body);
  EXPECT_THAT(what.starts_with(message.substr(0, message.find(' ')) + " at byte")
                  ? without_bytes(what)
                  : what,
              HasSubstr(message));
}

TEST(TokenizerGolden, Pipelines) {
  constexpr EncodeOptions kAll = {.parse_special = true, .add_special = true};
  std::size_t num_cases = 0;
  for (const Json& pipeline : golden("pipelines.json")) {
    SCOPED_TRACE(pipeline["name"]);
    Json file = golden("characters.json");
    file.merge_patch(pipeline["patch"]);
    const Tokenizer tokenizer(parse_tokenizer_json(file.dump()));
    EXPECT_FALSE(tokenizer.is_lossless());
    for (const Json& item : pipeline["cases"]) {
      const std::string text = from_hex(item["hex"]);
      SCOPED_TRACE(item["hex"]);
      const Ids ids = tokenizer.encode(text, kAll);
      EXPECT_EQ(ids, item["ids"].get<Ids>());
      EXPECT_EQ(tokenizer.decode(ids), item["text"].get<std::string>());
      ++num_cases;
    }
    const TokenizerSpec& spec = tokenizer.spec();
    EXPECT_EQ(parse_tokenizer_json(format_tokenizer_json(spec)), spec);
  }
  EXPECT_GT(num_cases, 600U);
}

// What Hugging Face's tokenizers cut texts to, step by step and behind each other.
TEST(TokenizerGolden, Splits) {
  const Json characters = golden("characters.json");
  const Json bytes = Json::parse(format_tokenizer_json(
      train_bpe(read_file(golden_path("corpus.txt")), {.vocab_size = 300}).spec()));
  std::size_t num_texts = 0;
  for (const Json& item : golden("splits.json")) {
    SCOPED_TRACE(item["pre_tokenizer"].dump());
    const bool is_byte_level = item["pre_tokenizer"].dump().find("ByteLevel") != std::string::npos;
    Json file = is_byte_level ? bytes : characters;
    file["pre_tokenizer"] = item["pre_tokenizer"];
    const TokenizerSpec spec = parse_tokenizer_json(file.dump());
    EXPECT_EQ(parse_tokenizer_json(format_tokenizer_json(spec)).splits, spec.splits);
    const PreTokenizer pre_tokenizer(spec.splits);
    for (const Json& text : item["texts"]) {
      std::vector<std::string> pieces;
      pre_tokenizer.split(text["text"].get<std::string>(), [&](std::string_view piece) {
        pieces.push_back(is_byte_level ? to_byte_level(piece) : std::string(piece));
      });
      EXPECT_EQ(pieces, text["pieces"].get<std::vector<std::string>>()) << text["text"];
      ++num_texts;
    }
  }
  EXPECT_GT(num_texts, 1000U);
}

// Ids of Hugging Face's tokenizers where added tokens stand beside white space, words and others.
TEST(TokenizerGolden, AddedTokens) {
  const std::string bytes = read_file(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                      "fuzz/corpus/tokenizer_json/byte_level.json");
  std::size_t num_texts = 0;
  for (const Json& item : golden("added_tokens.json")) {
    SCOPED_TRACE(item["patch"].dump());
    Json file = item["base"] == "bytes" ? Json::parse(bytes) : golden("characters.json");
    file.update(item["patch"]);
    const Tokenizer tokenizer(parse_tokenizer_json(file.dump()));
    for (const Json& text : item["texts"]) {
      EXPECT_EQ(tokenizer.encode(text["text"].get<std::string>(), {.parse_special = true}),
                text["ids"].get<Ids>())
          << text["text"];
      ++num_texts;
    }
    const TokenizerSpec& spec = tokenizer.spec();
    EXPECT_EQ(parse_tokenizer_json(format_tokenizer_json(spec)), spec);
  }
  EXPECT_GT(num_texts, 400U);
}

TEST(TokenizerGolden, TiktokenAndNfc) {
  const Tokenizer tiktoken = Tokenizer::load(golden_path("llama3.tiktoken"));
  const std::string corpus = read_file(golden_path("corpus.txt"));
  TokenizerSpec qwen = train_bpe(corpus, {.vocab_size = 700}).spec();
  qwen.splits = {{.pattern = std::string(kQwenPattern)}};
  qwen.normalizer = {{.kind = NormalizerStep::Kind::kNfc, .from = "", .to = ""}};
  TokenizerSpec by_engine = qwen;
  by_engine.splits = {{.pattern = "(?:" + std::string(kQwenPattern) + ")"}};
  for (const Json& item : golden("ranks.json")) {
    const std::string text = from_hex(item["hex"]);
    SCOPED_TRACE(item["hex"]);
    EXPECT_EQ(tiktoken.encode(text), item["tiktoken"].get<Ids>());
    EXPECT_EQ(tiktoken.decode(tiktoken.encode(text)), text);
    EXPECT_EQ(Tokenizer(qwen).encode(text), item["qwen"].get<Ids>());
    EXPECT_EQ(Tokenizer(by_engine).encode(text), item["qwen"].get<Ids>());
    EXPECT_EQ(Tokenizer(qwen).decode(Tokenizer(qwen).encode(text)), from_hex(item["nfc"]));
  }
}

// The same ranks are cut as their family says, which the file's name tells, or a first line.
TEST(TokenizerGolden, TiktokenFamilies) {
  const TestDirectory directory;
  const std::string ranks = read_file(golden_path("llama3.tiktoken"));
  for (const Json& item : golden("tiktoken.json")) {
    const auto family = item["family"].get<std::string>();
    SCOPED_TRACE(family);
    const auto named = directory.path() / (family + ".tiktoken");
    write_test_file(named, ranks);
    const Tokenizer tokenizer = Tokenizer::load(named);
    for (const Json& text : item["texts"]) {
      EXPECT_EQ(tokenizer.encode(text["text"].get<std::string>()), text["ids"].get<Ids>())
          << text["text"];
    }
    // What a run keeps of it has another name, and is the same tokenizer.
    write_test_file(directory.path() / "kept", read_tokenizer_file(named));
    EXPECT_EQ(Tokenizer::load(directory.path() / "kept").spec(), tokenizer.spec());
    write_test_file(directory.path() / "any", "# tiktoken " + family + "\n" + ranks);
    EXPECT_EQ(Tokenizer::load(directory.path() / "any").spec(), tokenizer.spec());
    write_test_file(directory.path() / "converted", format_tokenizer_json(tokenizer.spec()));
    const Tokenizer converted = Tokenizer::load(directory.path() / "converted");
    EXPECT_EQ(converted.vocab_size(), tokenizer.vocab_size());
    EXPECT_EQ(converted.encode(ranks), tokenizer.encode(ranks));
  }
}

TEST(TokenizerGolden, SentencePiece) {
  const Tokenizer tokenizer = Tokenizer::load(golden_path("sentencepiece.model"));
  EXPECT_EQ(tokenizer.vocab_size(), 500);
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_EQ(tokenizer.eos(), 2);
  EXPECT_TRUE(tokenizer.is_special(2));
  for (const Json& item : golden("sentencepiece.json")) {
    const auto given = item["given"].get<std::string>();
    const Ids ids = tokenizer.encode(given);
    EXPECT_EQ(ids, item["ids"].get<Ids>()) << given;
    EXPECT_EQ(tokenizer.decode(ids), item["text"].get<std::string>()) << given;
  }
  const Ids with_bos = tokenizer.encode("the<s>", {.parse_special = true, .add_special = true});
  EXPECT_EQ(with_bos.front(), 1);
  EXPECT_EQ(with_bos.back(), 1);
  EXPECT_NE(tokenizer.encode("the<s>").back(), 1);
  const TestDirectory directory;
  expect_error([&] { tokenizer.save(directory.path() / "tokenizer.json"); },
               ErrorCode::kUnsupported,
               "a SentencePiece model has no tokenizer.json: keep its .model file");
}

// Token after token, as a sampler prints them, the text is that of all at once.
TEST(Tokenizer, ContinuesAText) {
  const std::string text = "the light 灯塔 was lit, e\u0301";
  for (const char* name : {"characters.json", "sentencepiece.model", "llama3.tiktoken"}) {
    const Tokenizer tokenizer = Tokenizer::load(golden_path(name));
    Utf8Stream stream;
    std::string joined;
    for (const std::int32_t id : tokenizer.encode(" go on: " + text)) {
      joined += stream.push(tokenizer.decode(std::vector{id}, {.continues = true}));
    }
    EXPECT_TRUE(joined.ends_with(" go on: " + text)) << name << ": " << joined;
  }
}

// Quadratic time would not end here.
TEST(Tokenizer, LongTextsOfOneWord) {
  const std::string letters(1'000'000, 'e');
  std::string marks = "a";
  while (marks.size() < 1'000'000) {
    marks += "\u0315\u0300\u05AE\u0301";
  }
  Json file = golden("characters.json");
  const Tokenizer characters(parse_tokenizer_json(file.dump()));
  EXPECT_EQ(characters.decode(characters.encode(letters)), letters);
  EXPECT_EQ(characters.decode(characters.encode(marks)), marks);
  file["normalizer"] = {{"type", "NFC"}};
  const Tokenizer normalizing(parse_tokenizer_json(file.dump()));
  EXPECT_EQ(normalizing.encode(marks).size(), normalizing.encode(marks).size());
  const Tokenizer tiktoken = Tokenizer::load(golden_path("llama3.tiktoken"));
  EXPECT_EQ(tiktoken.decode(tiktoken.encode(letters)), letters);
}

TEST(TokenizerFiles, TakesADirectory) {
  const TestDirectory directory;
  expect_error([&] { Tokenizer::load(directory.path()); },
               ErrorCode::kInvalidData,
               directory.path().string() + " has no tokenizer: expected tokenizer.json");
  write_test_file(directory.path() / "tokenizer.model",
                  "# tiktoken llama3\n" + read_file(golden_path("llama3.tiktoken")));
  EXPECT_EQ(Tokenizer::load(directory.path()).vocab_size(), 698 + 256);
  write_test_file(directory.path() / "tokenizer.json", read_file(golden_path("characters.json")));
  EXPECT_EQ(Tokenizer::load(directory.path()).kind(), "SentencePiece-style BPE with byte fallback");
}

// GPT-2's own files as its source reads them, from a tokenizer that was trained here.
TEST(TokenizerFiles, ReadsGpt2Files) {
  const TestDirectory directory;
  const Tokenizer trained = train_bpe(read_file(golden_path("corpus.txt")),
                                      {.vocab_size = 400, .special_tokens = {"<|endoftext|>"}});
  const Json json = Json::parse(format_tokenizer_json(trained.spec()));
  Json encoder = json["model"]["vocab"];
  encoder["<|endoftext|>"] = 399;
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : json["model"]["merges"]) {
    merges += merge.get<std::string>() + "\n";
  }
  write_test_file(directory.path() / "encoder.json", encoder.dump());
  expect_error([&] { Tokenizer::load(directory.path()); },
               ErrorCode::kInvalidData,
               "vocab.bpe is missing: encoder.json and vocab.bpe make a tokenizer together");
  write_test_file(directory.path() / "vocab.bpe", merges);
  const Tokenizer loaded = Tokenizer::load(directory.path() / "vocab.bpe");
  EXPECT_EQ(loaded.spec().tokens, trained.spec().tokens);
  EXPECT_EQ(loaded.spec().merges, trained.spec().merges);
  EXPECT_THAT(loaded.spec().splits, ElementsAre(Split{.pattern = std::string(kGpt2Pattern)}));
  EXPECT_EQ(loaded.bos(), 399);
  // What a run keeps of the two is one file that loads alike.
  write_test_file(directory.path() / "kept", read_tokenizer_file(directory.path()));
  EXPECT_EQ(Tokenizer::load(directory.path() / "kept").spec().merges, trained.spec().merges);
  write_test_file(directory.path() / "vocab.bpe", merges + "zz qq\n");
  expect_error([&] { Tokenizer::load(directory.path()); },
               ErrorCode::kInvalidData,
               "line 145 of the merges needs the token \"zz\"");
}

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

TEST(TokenizerFiles, ExportsForHuggingFace) {
  const TestDirectory directory;
  const auto exported = [&](const char* from, const char* to) {
    export_tokenizer(golden_path(from), directory.path());
    return read_file(directory.path() / to);
  };
  EXPECT_EQ(exported("characters.json", "tokenizer.json"),
            read_file(golden_path("characters.json")));
  EXPECT_EQ(exported("sentencepiece.model", "tokenizer.model"),
            read_file(golden_path("sentencepiece.model")));
  const Tokenizer tiktoken = Tokenizer::load(golden_path("llama3.tiktoken"));
  const Tokenizer converted(parse_tokenizer_json(exported("llama3.tiktoken", "tokenizer.json")));
  const std::string corpus = read_file(golden_path("corpus.txt"));
  EXPECT_EQ(converted.encode(corpus), tiktoken.encode(corpus));
  EXPECT_EQ(converted.bos(), tiktoken.bos());
}

// Ids that GPT-2's tokenizer is known to give.
TEST(TokenizerFiles, Gpt2) {
  const auto path = std::filesystem::path(TESSERA_SOURCE_DIR) / "../shared/data/gpt2";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << "GPT-2's encoder.json and vocab.bpe are not in " << path;
  }
  const Tokenizer tokenizer = Tokenizer::load(path);
  EXPECT_EQ(tokenizer.vocab_size(), 50257);
  EXPECT_EQ(tokenizer.bos(), 50256);
  EXPECT_THAT(tokenizer.encode("Hello world"), ElementsAre(15496, 995));
  EXPECT_THAT(tokenizer.encode("Hello, I'm a language model,"),
              ElementsAre(15496, 11, 314, 1101, 257, 3303, 2746, 11));
  EXPECT_THAT(tokenizer.encode("<|endoftext|>", {.parse_special = true}), ElementsAre(50256));
}

// So many ranks as a published file has, some of them left out.
TokenizerSpec family_spec(const TiktokenFamily& family, std::size_t num_ids) {
  TokenizerSpec spec;
  spec.tokens.resize(num_ids);
  if (num_ids > family.num_ranks) {
    spec.holes = {50'256};
  }
  add_tiktoken_family(family, spec);
  return spec;
}

// Ids of tiktoken's openai_public.py, of llama3's tokenizer.py and Qwen's tokenization_qwen.py.
TEST(TokenizerFiles, TiktokenFamiliesHaveTheirSpecialTokens) {
  const auto id_of = [](const TokenizerSpec& spec, const std::string& content) {
    const auto found = std::ranges::find(spec.added, content, &AddedToken::content);
    return found == spec.added.end() ? -1 : found->id;
  };
  const auto of = [](std::string_view name, std::size_t num_ids) {
    return family_spec(*find_tiktoken_family(name), num_ids);
  };
  const TokenizerSpec r50k = of("r50k_base", 50'256);
  EXPECT_EQ(r50k.tokens.size(), 50'257U);
  EXPECT_EQ(id_of(r50k, "<|endoftext|>"), 50'256);
  EXPECT_TRUE(r50k.holes.empty());
  const TokenizerSpec p50k = of("p50k_base", 50'281);
  EXPECT_EQ(p50k.tokens.size(), 50'281U);
  EXPECT_EQ(id_of(p50k, "<|endoftext|>"), 50'256);
  EXPECT_EQ(p50k.added.size(), 1U);
  const TokenizerSpec edit = of("p50k_edit", 50'281);
  EXPECT_EQ(id_of(edit, "<|endoftext|>"), 50'256);
  EXPECT_EQ(id_of(edit, "<|fim_prefix|>"), 50'281);
  EXPECT_EQ(id_of(edit, "<|fim_suffix|>"), 50'283);
  const TokenizerSpec cl100k = of("cl100k_base", 100'256);
  EXPECT_EQ(cl100k.tokens.size(), 100'277U);
  EXPECT_EQ(id_of(cl100k, "<|endoftext|>"), 100'257);
  EXPECT_EQ(id_of(cl100k, "<|fim_middle|>"), 100'259);
  EXPECT_EQ(id_of(cl100k, "<|endofprompt|>"), 100'276);
  EXPECT_EQ(cl100k.holes.size(), 16U);
  EXPECT_EQ(cl100k.holes.front(), 100'256);
  const TokenizerSpec o200k = of("o200k_base", 199'998);
  EXPECT_EQ(o200k.tokens.size(), 200'019U);
  EXPECT_EQ(id_of(o200k, "<|endoftext|>"), 199'999);
  EXPECT_EQ(id_of(o200k, "<|endofprompt|>"), 200'018);
  const TokenizerSpec harmony = of("o200k_harmony", 199'998);
  EXPECT_EQ(harmony.tokens.size(), 201'088U);
  EXPECT_EQ(id_of(harmony, "<|start|>"), 200'006);
  EXPECT_EQ(id_of(harmony, "<|call|>"), 200'012);
  EXPECT_EQ(id_of(harmony, "<|reserved_201087|>"), 201'087);
  const TokenizerSpec llama3 = of("llama3", 128'000);
  EXPECT_EQ(llama3.tokens.size(), 128'256U);
  EXPECT_EQ(id_of(llama3, "<|eot_id|>"), 128'009);
  EXPECT_EQ(id_of(llama3, "<|reserved_special_token_250|>"), 128'255);
  const TokenizerSpec qwen = of("qwen", 151'643);
  EXPECT_EQ(qwen.tokens.size(), 151'851U);
  EXPECT_EQ(id_of(qwen, "<|im_end|>"), 151'645);
  EXPECT_EQ(qwen.normalizer.size(), 1U);
}

// Lines of base64 and ranks from 0, of `count` tokens: the bytes and words that are letters.
std::string many_ranks(std::size_t count) {
  std::string lines;
  for (std::size_t rank = 0; rank < count; ++rank) {
    std::string bytes(1, static_cast<char>(rank));
    for (std::size_t rest = rank < 256 ? 0 : rank; rest > 0; rest /= 26) {
      bytes = rest == rank ? "_" : bytes;
      bytes += static_cast<char>('a' + rest % 26);
    }
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
      const std::size_t left = std::min<std::size_t>(bytes.size() - at, 3);
      unsigned bits = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        bits = bits << 8U | (i < left ? static_cast<unsigned char>(bytes[at + i]) : 0U);
      }
      for (std::size_t i = 0; i < 4; ++i) {
        lines += i <= left ? kDigits[bits >> (18 - 6 * i) & 0x3FU] : '=';
      }
    }
    lines += " " + std::to_string(rank) + "\n";
  }
  return lines;
}

TEST(TokenizerFiles, TiktokenFamiliesAreTold) {
  const std::string gpt2_like = many_ranks(50'256);
  EXPECT_EQ(parse_tiktoken(gpt2_like, "tokenizer.model").splits.front().pattern, kGpt2Pattern);
  EXPECT_EQ(parse_tiktoken(gpt2_like, "gpt2.tiktoken").tokens.size(), 50'257U);
  EXPECT_EQ(tiktoken_with_family(gpt2_like, "gpt2.tiktoken"), gpt2_like);
  const auto refusal = [](const std::string& text, std::string_view name) {
    return error_of(ErrorCode::kInvalidData, [&] { parse_tiktoken(text, name); });
  };
  EXPECT_THAT(refusal(gpt2_like, "o200k_base.tiktoken"),
              HasSubstr("the lines are 50256 ranks, as r50k_base has, but the file's name says "
                        "o200k_base: rename it, or put a first line \"# tiktoken NAME\""));
  const std::string few = many_ranks(300);
  EXPECT_THAT(refusal(few, "tokenizer.model"),
              HasSubstr("says neither its pattern nor its special tokens, and 300 ranks and this "
                        "file's name do not tell them: put a first line \"# tiktoken NAME\""));
  EXPECT_THAT(refusal("# tiktoken llama9\n" + few, "llama3"),
              HasSubstr("line 1 names the tiktoken family \"llama9\", expected one of llama3, "));
  EXPECT_EQ(parse_tiktoken(few, "Meta-Llama-3-8B.model").added.size(), 256U);
  EXPECT_EQ(parse_tiktoken(few, "cl100k.tiktoken").holes.size(), 16U);
  EXPECT_EQ(parse_tiktoken("# tiktoken qwen\n" + few, "llama3").added.size(), 208U);
}

TEST(TokenizerFiles, BrokenTiktoken) {
  const std::string good = read_file(golden_path("llama3.tiktoken"));
  const auto expect_refused = [](const std::string& text, const std::string& message) {
    expect_error([&] { parse_tiktoken(text, "llama3"); }, ErrorCode::kInvalidData, message);
  };
  expect_refused(
      "",
      "no token is the single byte 0x00: a tiktoken file has all 256 (what lines 1 to 0 say "
      "together)");
  expect_refused("IQ== 1\nIg== 1\n", "line 2 has the rank 1, expected 2: ranks rise");
  expect_refused("IQ== 1\nIg== 0\n", "line 2 has the rank 0, expected 2: ranks rise");
  expect_refused("IQ== 99999\n", "line 1 has the rank 99999, expected 0: ranks rise");
  expect_refused("IQ== 0\nIQ= 1\n", "line 2 is \"IQ= 1\", expected base64, a space and a rank");
  expect_refused("IQ== 0\nIQ== 99999999999\n", "line 2 is \"IQ== 99999999999\"");
  expect_refused("IQ== -1\n", "line 1 is \"IQ== -1\"");
  expect_refused("I*== 0\n", "line 1 is");
  expect_refused(good + "IQ== 698\n", "line 699 has the token of line 1");
  expect_refused(good + "\n\nIQ== 698\n", "line 701 has the token of line 1");
  expect_refused(good.substr(0, good.size() / 8), "");
}

TEST(TokenizerFiles, BrokenSentencePiece) {
  const TestDirectory directory;
  const std::string good = read_file(golden_path("sentencepiece.model"));
  const std::filesystem::path path = directory.path() / "tokenizer.model";
  write_test_file(path, good.substr(0, good.size() / 2));
  expect_error([&] { Tokenizer::load(path); },
               ErrorCode::kInvalidData,
               "SentencePiece cannot read the model");
  write_test_file(path, "no tokenizer at all");
  expect_error([&] { Tokenizer::load(path); }, ErrorCode::kInvalidData, "not JSON at byte 1");
}

// A character of which one byte has no token becomes the unknown one, as Hugging Face's BPE has it.
TEST(TokenizerFiles, FallbackThatLacksBytes) {
  const Json whole = golden("characters.json");
  Json file = whole;
  file["model"]["vocab"].erase("<0xE7>");
  file["model"]["vocab"]["<E7>"] = whole["model"]["vocab"]["<0xE7>"];
  const Json with_unk = file;
  file["model"]["unk_token"] = nullptr;
  const Tokenizer tokenizer(parse_tokenizer_json(file.dump()));
  const Tokenizer unknown(parse_tokenizer_json(with_unk.dump()));
  const std::string rare = "\xE7\xBF\xBF";  // U+7FFF
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { tokenizer.encode(rare); }),
              HasSubstr("is 0xE7, which no token stands for: the tokenizer lacks 1 byte (0xE7)"));
  EXPECT_EQ(unknown.encode(rare).back(), unknown.spec().unk);
  EXPECT_EQ(tokenizer.encode("plain"), unknown.encode("plain"));
}

TEST(TokenizerFiles, BrokenPipelines) {
  const auto expect_refused = [](const Json& patch, ErrorCode code, const std::string& message) {
    Json file = golden("characters.json");
    file.merge_patch(patch);
    expect_error([&] { parse_tokenizer_json(file.dump()); }, code, message);
  };
  constexpr ErrorCode kData = ErrorCode::kInvalidData;
  constexpr ErrorCode kNo = ErrorCode::kUnsupported;
  expect_refused(Json::parse(R"({"post_processor": {"special_tokens": {"<s>": {"ids": [9999]}}}})"),
                 kData,
                 "/post_processor/special_tokens/<s>/ids/0 is 9999, expected an id from 0 to ");
  expect_refused(Json::parse(R"({"post_processor": {"single": []}})"),
                 kData,
                 "/post_processor/single is array, expected a list with the text");
  expect_refused(Json::parse(R"({"model": {"unk_token": "<none>"}})"),
                 kData,
                 "/model/unk_token is \"<none>\", expected a token of /model/vocab");
  expect_refused(Json::parse(R"({"model": {"unk_token": null, "byte_fallback": false}})"),
                 kData,
                 "characters that are no token need byte_fallback or an unknown token");
  expect_refused(Json::parse(R"({"normalizer": {"type": "Replace", "pattern": {"Regex": " "}}})"),
                 kNo,
                 "/normalizer/normalizers is not a key that is known here");
  expect_refused(Json::parse(R"({"decoder": {"type": "Strip", "content": "", "decoders": null}})"),
                 kData,
                 "/decoder/content is \"\", expected text");
  expect_refused(Json::parse(R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "_",
                                                   "prepend_scheme": "often"}})"),
                 kData,
                 "/pre_tokenizer/prepend_scheme is \"often\", expected \"always\"");
}

std::string refusal_of_file(const std::string& name, std::string_view bytes) {
  const TestDirectory directory;
  write_test_file(directory.path() / name, bytes);
  return error_of(ErrorCode::kInvalidData, [&] { Tokenizer::load(directory.path() / name); });
}

TEST(TokenizerFiles, SayWhatTheyAreInPlaceOfATokenizer) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 3\n";
  for (const char* name : {"tokenizer.json", "tokenizer.model", "x.tiktoken"}) {
    EXPECT_THAT(
        refusal_of_file(name, pointer),
        HasSubstr(std::string(name) + " is a Git LFS pointer, expected a tokenizer: the file "
                                      "itself is not there yet; `git lfs pull` gets it"));
    EXPECT_THAT(refusal_of_file(name, ""), HasSubstr(std::string(name) + " is empty, expected a"));
  }
  EXPECT_THAT(refusal_of_file("x.tiktoken.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10)),
              HasSubstr("is a gzip file, expected a tokenizer: unpack it"));
}

TEST(TokenizerFiles, OfTiktokenMayBeginWithAByteOrderMark) {
  EXPECT_THAT(refusal_of_file("x.tiktoken", "\xef\xbb\xbfYQ== 0\nYg== 1\n"),
              HasSubstr("a tiktoken file says neither its pattern"));
}

}  // namespace
}  // namespace tessera
