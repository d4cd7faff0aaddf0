// The ids and texts of other tokenizers, as the golden files have them.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/utf8.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/normalizer.h"
#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/test_goldens.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/tokenizer/tokenizer_json.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

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
    write_test_file(directory.path() / "any", format("# tiktoken {}\n{}", family, ranks));
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

}  // namespace
}  // namespace tessera
