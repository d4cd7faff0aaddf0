// The files that a tokenizer is read from, broken ones too, and written to.

#include "tessera/tokenizer/tokenizer_files.h"

#include <filesystem>
#include <string>
#include <string_view>

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
#include "tessera/tokenizer/tokenizer_json.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

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
