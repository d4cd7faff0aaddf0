#include "tessera/tokenizer/tokenizer_json.h"

#include <filesystem>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// The form of GPT-2's file: no model type, an added token inside the vocabulary.
Json gpt2_like() {
  Json json = Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 258, "special": true, "content": "<|endoftext|>",
                      "single_word": false, "lstrip": false, "rstrip": false, "normalized": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
    "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
    "model": {"dropout": null, "unk_token": null, "continuing_subword_prefix": "",
              "end_of_word_suffix": "", "fuse_unk": false,
              "vocab": {"Ġa": 256, "Ġab": 257, "<|endoftext|>": 258}, "merges": ["Ġ a", "Ġa b"]}
  })");
  int id = 0;
  for (const std::uint8_t byte : byte_level_order()) {
    json["model"]["vocab"][to_byte_level(std::string(1, static_cast<char>(byte)))] = id++;
  }
  return json;
}

// The form of Llama 3's file: Split and ByteLevel, added tokens after the vocabulary, one of them
// not special, merges as pairs, and a template.
Json llama3_like() {
  Json json = gpt2_like();
  json["added_tokens"] = Json::parse(R"([
    {"id": 258, "special": true, "content": "<|begin_of_text|>",
     "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
    {"id": 259, "special": false, "content": "灯 x",
     "single_word": false, "lstrip": false, "rstrip": false, "normalized": true}])");
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"Regex", kLlama3Pattern}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             {{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"trim_offsets", true},
                              {"use_regex", false}}}}};
  json["post_processor"] = Json::parse(R"({"type": "Sequence", "processors": [
    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}],
     "pair": [], "special_tokens": {"<|begin_of_text|>":
       {"id": "<|begin_of_text|>", "ids": [258], "tokens": ["<|begin_of_text|>"]}}}]})");
  json["model"]["vocab"].erase("<|endoftext|>");
  json["model"]["type"] = "BPE";
  json["model"]["ignore_merges"] = true;
  json["model"]["merges"] = Json::parse(R"([["Ġ", "a"], ["Ġa", "b"]])");
  return json;
}

TEST(TokenizerJson, ReadsGpt2Form) {
  const TokenizerSpec spec = parse_tokenizer_json(gpt2_like().dump());
  EXPECT_THAT(spec.splits, ElementsAre(Split{.pattern = std::string(kGpt2Pattern)}));
  EXPECT_FALSE(spec.ignore_merges);
  EXPECT_EQ(spec.tokens[257], " ab");
  EXPECT_THAT(spec.merges,
              ElementsAre(MergeRule{.left = 220, .right = 64, .result = 256},
                          MergeRule{.left = 256, .right = 65, .result = 257}));
  EXPECT_THAT(spec.added,
              ElementsAre(AddedToken{
                  .id = 258, .content = "<|endoftext|>", .special = true, .normalized = true}));
  const Tokenizer tokenizer(spec);
  EXPECT_THAT(tokenizer.encode(" ab a<|endoftext|>", {.parse_special = true}),
              ElementsAre(257, 256, 258));
}

TEST(TokenizerJson, ReadsLlama3Form) {
  const TokenizerSpec spec = parse_tokenizer_json(llama3_like().dump());
  EXPECT_THAT(spec.splits, ElementsAre(Split{.pattern = std::string(kLlama3Pattern)}));
  EXPECT_TRUE(spec.ignore_merges);
  EXPECT_EQ(spec.tokens.size(), 260U);
  EXPECT_EQ(spec.tokens[259], "灯 x");
  EXPECT_EQ(spec.merges, parse_tokenizer_json(gpt2_like().dump()).merges);
  const Tokenizer tokenizer(spec);
  EXPECT_THAT(tokenizer.encode(" ab灯 x a"), ElementsAre(257, 259, 256));
  EXPECT_EQ(tokenizer.bos(), 258);
}

TEST(TokenizerJson, WritesWhatItReads) {
  Json other_pattern = llama3_like();
  other_pattern["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = R"(\p{L}+|"[^"\s]*")";
  Json added_inside = gpt2_like();
  added_inside["added_tokens"][0]["id"] = 0;
  added_inside["added_tokens"][0]["content"] = "灯 x";
  added_inside["model"]["vocab"].erase("<|endoftext|>");
  added_inside["model"]["vocab"]["灯 x"] = 0;
  added_inside["model"]["vocab"]["!"] = 258;
  for (const Json& json : {gpt2_like(), llama3_like(), other_pattern, added_inside}) {
    const TokenizerSpec spec = parse_tokenizer_json(json.dump());
    const std::string text = format_tokenizer_json(spec);
    EXPECT_EQ(parse_tokenizer_json(text), spec);
    EXPECT_EQ(format_tokenizer_json(parse_tokenizer_json(text)), text);
  }
}

// Hugging Face numbers added tokens that the vocabulary lacks from its size on.
TEST(TokenizerJson, WritesAddedTokensAfterTheVocabulary) {
  const Json json = Json::parse(format_tokenizer_json(parse_tokenizer_json(gpt2_like().dump())));
  EXPECT_EQ(json["model"]["vocab"].size(), 258U);
  EXPECT_EQ(json["added_tokens"][0]["id"], 258);
  EXPECT_EQ(json["model"]["merges"][1], "Ġa b");
  EXPECT_EQ(json["post_processor"], gpt2_like()["post_processor"]);
}

TEST(TokenizerJson, SavesAndLoads) {
  const std::string corpus =
      read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/golden/tokenizer/corpus.txt");
  const Tokenizer tokenizer = train_bpe(corpus, {.vocab_size = 500});
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "tokenizer.json";
  tokenizer.save(path);
  const Tokenizer loaded = Tokenizer::load(path);
  EXPECT_EQ(loaded.spec(), tokenizer.spec());
  EXPECT_EQ(loaded.encode(corpus), tokenizer.encode(corpus));
  EXPECT_EQ(loaded.bos(), 498);
  EXPECT_EQ(loaded.eos(), 499);
  const Json template_json = Json::parse(loaded.spec().post_processor);
  EXPECT_EQ(template_json["single"][0]["SpecialToken"]["id"], "<|begin_of_text|>");
  EXPECT_EQ(template_json["special_tokens"]["<|begin_of_text|>"]["ids"][0], 498);
}

// Ids belong to what the file gives them, whatever is left out before them.
TEST(TokenizerJson, LeavesOutIds) {
  Json json = gpt2_like();
  json["model"]["vocab"]["Ġab"] = 300;
  json["model"]["vocab"].erase("<|endoftext|>");
  json["added_tokens"][0]["id"] = 310;
  const Tokenizer tokenizer(parse_tokenizer_json(json.dump()));
  EXPECT_EQ(tokenizer.vocab_size(), 311);
  EXPECT_EQ(tokenizer.holes().size(), 311U - 259U);
  EXPECT_EQ(tokenizer.holes().front(), 257);
  EXPECT_EQ(tokenizer.bos(), 310);
  EXPECT_THAT(tokenizer.encode(" ab a<|endoftext|>", {.parse_special = true}),
              ElementsAre(300, 256, 310));
  EXPECT_EQ(tokenizer.decode(std::vector{300, 310, 256}, {.skip_special = false}),
            " ab<|endoftext|> a");
  const auto fails = [](const auto& body) { return error_of(ErrorCode::kInvalidArgument, body); };
  EXPECT_THAT(fails([&] { tokenizer.decode(std::vector{300, 299}); }),
              HasSubstr("id 1 of 2 to decode is 299, which belongs to no token"));
  EXPECT_THAT(fails([&] { tokenizer.spelling(309); }), HasSubstr("the token id is 309, which"));
  EXPECT_FALSE(tokenizer.is_special(309));
  // Hugging Face numbers what the vocabulary lacks by the count of its entries: it lacks nothing.
  const std::string text = format_tokenizer_json(tokenizer.spec());
  EXPECT_EQ(parse_tokenizer_json(text), tokenizer.spec());
  EXPECT_EQ(Json::parse(text)["model"]["vocab"]["<|endoftext|>"], 310);
  json["post_processor"] = Json::parse(
      R"({"type": "TemplateProcessing", "pair": [], "single": [{"SpecialToken": {"id": "x"}},
          {"Sequence": {}}], "special_tokens": {"x": {"ids": [299]}}})");
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { parse_tokenizer_json(json.dump()); }),
              HasSubstr("a token of the post-processor has the id 299, which belongs to no token"));
}

// Bytes that are no token's fall back to ids behind holes.
TEST(TokenizerJson, LeavesOutIdsAmongBytes) {
  Json json = Json::parse(
      read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/golden/tokenizer/characters.json"));
  const Tokenizer dense(parse_tokenizer_json(json.dump()));
  for (Json& id : json["model"]["vocab"]) {
    id = id.get<int>() < 100 ? id.get<int>() : id.get<int>() + 1000;
  }
  json["added_tokens"].erase(3);
  const Tokenizer tokenizer(parse_tokenizer_json(json.dump()));
  const std::string text = "the light \u00ff \U0001F5FC 灯塔";
  std::vector<std::int32_t> expected = dense.encode(text);
  EXPECT_GT(*std::ranges::min_element(expected), 2);
  for (std::int32_t& id : expected) {
    id += id < 100 ? 0 : 1000;
  }
  EXPECT_EQ(tokenizer.encode(text), expected);
  EXPECT_EQ(tokenizer.decode(expected), text);
}

// An added token that merges make as well.
TEST(TokenizerJson, MergesMakeAddedTokens) {
  Json json = gpt2_like();
  json["added_tokens"][0]["content"] = "ab";
  json["added_tokens"][0]["single_word"] = true;
  json["added_tokens"][0]["special"] = false;
  json["model"]["vocab"].erase("<|endoftext|>");
  json["model"]["vocab"]["ab"] = 258;
  json["model"]["merges"].push_back("a b");
  const Tokenizer tokenizer(parse_tokenizer_json(json.dump()));
  EXPECT_THAT(tokenizer.encode("ab.abb"), ElementsAre(258, 13, 258, 65));
}

// What data do not ask for changes nothing of them: special tokens that take white space along.
TEST(TokenizerJson, StrippingTokensAreLossless) {
  Json json = gpt2_like();
  json["added_tokens"][0]["rstrip"] = true;
  EXPECT_TRUE(Tokenizer(parse_tokenizer_json(json.dump())).is_lossless());
  json["added_tokens"][0]["special"] = false;
  const Tokenizer tokenizer(parse_tokenizer_json(json.dump()));
  EXPECT_FALSE(tokenizer.is_lossless());
  EXPECT_THAT(tokenizer.encode(" ab<|endoftext|> \n a"), ElementsAre(257, 258, 64));
}

// `message` is without bytes. Where the error names one of a key, that key is there.
void expect_refused(const std::string& text, ErrorCode code, const std::string& message) {
  const std::string what = error_of(code, [&] { parse_tokenizer_json(text); });
  EXPECT_THAT(message.find("at byte") == std::string::npos ? without_bytes(what) : what,
              HasSubstr(message));
  std::smatch place;
  const std::regex of_key("/([^/ ]*[^/ 0-9]) at byte ([0-9]+)");
  for (std::string rest = what; std::regex_search(rest, place, of_key); rest = place.suffix()) {
    const std::string at = text.substr(std::stoul(place[2]));
    EXPECT_TRUE(at.starts_with("\"" + place[1].str() + "\":")) << what << ": " << at;
  }
}

struct Change {
  Change(std::string place, Json new_value, ErrorCode expected_code, std::string expected_message)
      : pointer(std::move(place)),
        value(std::move(new_value)),
        code(expected_code),
        message(std::move(expected_message)) {}

  std::string pointer;
  Json value;  // discarded: the place is removed
  ErrorCode code;
  std::string message;
};

void expect_all_refused(const Json& original, const std::vector<Change>& changes) {
  for (const Change& change : changes) {
    SCOPED_TRACE(change.pointer + " = " + change.value.dump());
    Json json = original;
    const Json::json_pointer pointer(change.pointer);
    if (change.value.is_discarded()) {
      json = json.patch({{{"op", "remove"}, {"path", change.pointer}}});
    } else {
      json[pointer] = change.value;
    }
    expect_refused(json.dump(), change.code, change.message);
  }
}

const Json kRemoved = Json(Json::value_t::discarded);

TEST(TokenizerJsonErrors, Structure) {
  constexpr ErrorCode kData = ErrorCode::kInvalidData;
  expect_all_refused(
      gpt2_like(),
      {{"/model", kRemoved, kData, "the value has no \"model\""},
       {"/model", 3, kData, "/model is 3, expected an object"},
       {"/model/vocab", kRemoved, kData, "/model has no \"vocab\""},
       {"/model/vocab", Json::array(), kData, "/model/vocab is array, expected an object"},
       {"/model/merges", kRemoved, kData, "/model has no \"merges\""},
       {"/model/merges", "x", kData, "/model/merges is \"x\", expected an array"},
       {"/model/ignore_merges", 1, kData, "/model/ignore_merges is 1, expected true or false"},
       {"/decoder", kRemoved, kData, "the value has no \"decoder\""},
       {"/pre_tokenizer/type", 1, kData, "/pre_tokenizer/type is 1, expected a string"},
       {"/pre_tokenizer/add_prefix_space", kRemoved, kData, "no \"add_prefix_space\""},
       {"/added_tokens", Json::object(), kData, "/added_tokens is object, expected an array"},
       {"/added_tokens/0", 5, kData, "/added_tokens/0 is 5, expected an object"},
       {"/added_tokens/0/content", kRemoved, kData, "/added_tokens/0 has no \"content\""},
       {"/added_tokens/0/content", "", kData, "/added_tokens/0/content is \"\", expected text"},
       {"/added_tokens/0/special", "x", kData, "/added_tokens/0/special is \"x\", expected true"},
       {"/post_processor", 1, kData, "/post_processor is 1, expected an object"}});
}

TEST(TokenizerJsonErrors, Vocabulary) {
  constexpr ErrorCode kData = ErrorCode::kInvalidData;
  const std::string limit = ", expected an id from 0 to 1048834";
  Json two_added = gpt2_like()["added_tokens"];
  two_added.push_back(two_added[0]);
  expect_all_refused(
      gpt2_like(),
      {{"/model/vocab/Ġa", "256", kData, "/model/vocab/Ġa is \"256\", expected an integer"},
       {"/model/vocab/Ġa", 256.0, kData, "/model/vocab/Ġa is 256.0, expected an integer"},
       {"/model/vocab/Ġa", 259 + (1 << 20), kData, "/model/vocab/Ġa is 1048835" + limit},
       {"/model/vocab/Ġa", -1, kData, "/model/vocab/Ġa is -1" + limit},
       {"/model/vocab/Ġa", 1ULL << 63U, kData, "/model/vocab/Ġa is 9223372036854775808" + limit},
       {"/model/vocab/Ġa", 257, kData, "/model/vocab/Ġa and /model/vocab/Ġab have the same id"},
       {"/model/vocab/Ġa",
        258,
        kData,
        "the added token \"<|endoftext|>\" of /added_tokens and /model/vocab/Ġa have the same id "
        "258"},
       {"/added_tokens/0/id", 0, kData, "/added_tokens/0/id is 0, expected 258 as /model/vocab"},
       {"/added_tokens", two_added, kData, "/added_tokens/1/content is \"<|endoftext|>\", as that"},
       {"/model/vocab/灯", 259, ErrorCode::kUnsupported, "/model/vocab/灯 is not written in the"}});
}

// As the vocabularies of GPT-NeoX-20B and Pythia: without the 13 bytes that no UTF-8 has, and the
// text's own "!".
Json lacking_bytes() {
  Json json = gpt2_like();
  Json& vocab = json["model"]["vocab"];
  int id = 0;
  vocab = {{"Ġa", 256 - 14}, {"Ġab", 257 - 14}, {"<|endoftext|>", 258 - 14}};
  for (const std::uint8_t byte : byte_level_order()) {
    if (byte != '!' && byte != 0xC0 && byte != 0xC1 && byte < 0xF5) {
      vocab[to_byte_level(std::string(1, static_cast<char>(byte)))] = id++;
    }
  }
  json["added_tokens"][0]["id"] = 258 - 14;
  return json;
}

TEST(TokenizerJson, VocabulariesMayLackBytes) {
  const Tokenizer tokenizer(parse_tokenizer_json(lacking_bytes().dump()));
  EXPECT_EQ(tokenizer.vocab_size(), 259 - 14);
  EXPECT_EQ(describe_bytes(missing_bytes(tokenizer.spec())),
            "14 bytes (0x21, 0xC0, 0xC1, 0xF5 to 0xFF)");
  EXPECT_FALSE(tokenizer.is_lossless());
  EXPECT_THAT(tokenizer.encode(" ab a<|endoftext|>", {.parse_special = true}),
              ElementsAre(257 - 14, 256 - 14, 258 - 14));
  for (const std::string& text : {std::string("caf\u00e9 \U0001F600\n"), std::string(300, 'x')}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  // In short words and long ones, and again, since words are remembered.
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(error_of(ErrorCode::kInvalidData, [&] { tokenizer.encode(" ab\xF5 a"); }),
              "byte 4 of the text is 0xF5, which no token stands for: the tokenizer lacks 14 bytes "
              "(0x21, 0xC0, 0xC1, 0xF5 to 0xFF) and has no unknown token");
  }
  for (const std::size_t size : {std::size_t{100}, std::size_t{200'000}}) {
    const std::string text = "a " + std::string(size, 'x') + "\xC0x";
    EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { tokenizer.encode(text); }),
                ::testing::StartsWith(format("byte {} of the text is 0xC0, ", size + 3)));
  }
}

// The normalizer wrote the text anew, so that places in it are none of the given one's.
TEST(TokenizerJson, MissingBytesOfNormalizedText) {
  Json json = lacking_bytes();
  json["normalizer"] = {{"type", "NFC"}};
  const Tokenizer tokenizer(parse_tokenizer_json(json.dump()));
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { tokenizer.encode("e\u0301!"); }),
              ::testing::StartsWith("a byte of the normalized text is 0x21, "));
}

// As Hugging Face's BPE: one unknown token for each byte without a token, or for neighbours.
TEST(TokenizerJson, UnknownTokenOfMissingBytes) {
  Json json = lacking_bytes();
  json["model"]["unk_token"] = "<|endoftext|>";
  const std::int32_t unk = 258 - 14;
  const TokenizerSpec spec = parse_tokenizer_json(json.dump());
  EXPECT_EQ(parse_tokenizer_json(format_tokenizer_json(spec)), spec);
  EXPECT_THAT(Tokenizer(spec).encode("!! ab\xF5"), ElementsAre(unk, unk, 257 - 14, unk));
  json["model"]["fuse_unk"] = true;
  const Tokenizer fusing(parse_tokenizer_json(json.dump()));
  EXPECT_THAT(fusing.encode("!! ab\xF5"), ElementsAre(unk, 257 - 14, unk));
  // Its bytes are not the text's: long words are not put together from blocks.
  const std::string text = std::string(200'000, 'x') + "!!";
  EXPECT_EQ(fusing.encode(text).size(), 200'000U + 1);
  EXPECT_EQ(fusing.encode(text).back(), unk);
}

TEST(TokenizerJsonErrors, Merges) {
  constexpr ErrorCode kData = ErrorCode::kInvalidData;
  const std::string form = ", expected two tokens with one space between them";
  expect_all_refused(
      gpt2_like(),
      {{"/model/merges/1",
        "Ġa xyz",
        kData,
        "/model/merges/1 needs the token \"xyz\", which is not"},
       {"/model/merges/1", "xyz b", kData, "/model/merges/1 needs the token \"xyz\""},
       {"/model/merges/1",
        "a b",
        kData,
        "/model/merges/1 needs the token \"ab\", which is not in "
        "/model/vocab"},
       {"/model/merges/1", "Ġ a", kData, "/model/merges/1 merges \"Ġ\" and \"a\", as one before"},
       {"/model/merges/1", "Ġab", kData, "/model/merges/1 is \"Ġab\"" + form},
       {"/model/merges/1", "Ġ a b", kData, "/model/merges/1 is \"Ġ a b\"" + form},
       {"/model/merges/1", 7, kData, "/model/merges/1 is 7, expected two tokens"},
       {"/model/merges/1",
        Json::array({"Ġ"}),
        kData,
        "/model/merges/1 is array, expected two tokens"},
       {"/model/merges/1",
        Json::array({"Ġ", 1}),
        kData,
        "/model/merges/1/1 is 1, expected a string"}});
}

TEST(TokenizerJsonErrors, Unsupported) {
  constexpr ErrorCode kNo = ErrorCode::kUnsupported;
  const Json lowercase = {{"type", "Lowercase"}};
  expect_all_refused(
      gpt2_like(),
      {{"/normalizer", lowercase, kNo, "/normalizer/type is \"Lowercase\", supported is NFC, NFD"},
       {"/extra", 1, kNo, "/extra is not a key that is known here"},
       {"/model/extra", 1, kNo, "/model/extra is not a key that is known here"},
       {"/model/type", "Unigram", kNo, "/model/type is \"Unigram\", supported is \"BPE\""},
       {"/model/dropout", 0.1, kNo, "/model/dropout is 0.1, supported is null"},
       {"/model/byte_fallback", true, kNo, "/model/byte_fallback is true, supported is false"},
       {"/model/end_of_word_suffix", "</w>", kNo, "is \"</w>\", supported is null or \"\""},
       {"/decoder/type", "Metaspace", kNo, "/decoder is object, supported is a ByteLevel decoder"},
       {"/decoder", nullptr, kNo, "/decoder is null, supported is a ByteLevel decoder"},
       {"/pre_tokenizer", nullptr, kNo, "/decoder is object, supported is a ByteLevel decoder"},
       {"/pre_tokenizer/type", "BertPreTokenizer", kNo, "/pre_tokenizer/type is \"BertPreTok"},
       {"/pre_tokenizer/add_prefix_space", true, kNo, "add_prefix_space is true, supported is fal"},
       {"/post_processor/type", "BertProcessing", kNo, "/post_processor/type is \"BertProcessing"},
       {"/added_tokens/0/extra", true, kNo, "/added_tokens/0/extra is not a key"}});
  const std::string split = "/pre_tokenizer/pretokenizers/0";
  const std::string byte_level = "/pre_tokenizer/pretokenizers/1";
  expect_all_refused(
      llama3_like(),
      {{split + "/behavior", "Dropped", kNo, split + "/behavior is \"Dropped\", supported is"},
       {split + "/pattern", {{"Glob", " "}}, kNo, split + "/pattern/Glob is not a key"},
       {split + "/pattern/Regex",
        "\\w+",
        kNo,
        "the escape \\w at offset 0 of the pattern is not "
        "supported (the pattern of " +
            split + "/pattern"},
       {split + "/pattern/Regex", "(", ErrorCode::kInvalidData, "the pattern does not compile"},
       {split + "/type", "Whitespace", kNo, split + "/type is \"Whitespace\", supported is"},
       {byte_level, kRemoved, kNo, "/decoder is object, supported is a ByteLevel decoder"},
       {split,
        llama3_like()["pre_tokenizer"]["pretokenizers"][1],
        kNo,
        "/pre_tokenizer/pretokenizers/1 is object, supported is one ByteLevel"},
       {"/post_processor/processors/0/type", "X", kNo, "/post_processor/processors/0/type is"}});
}

// Any prefix of a file is refused as broken, never read as a smaller tokenizer.
TEST(TokenizerJsonErrors, Truncated) {
  const std::string text = gpt2_like().dump();
  for (std::size_t size = 0; size < text.size(); size += 1 + size / 50) {
    expect_refused(text.substr(0, size), ErrorCode::kInvalidData, "not JSON at byte");
  }
  expect_refused(text + "}", ErrorCode::kInvalidData, "not JSON at byte");
  expect_refused("{\"version\": \"\xFF\"}", ErrorCode::kInvalidData, "not JSON at byte 13");
  expect_refused("{\"version\": 1e999}", ErrorCode::kInvalidData, "not JSON at byte 16");
  expect_refused(
      "[1]", ErrorCode::kInvalidData, "the value at byte 0 is array, expected an object");
  expect_refused(std::string(1 << 20, '['), ErrorCode::kInvalidData, "not JSON at byte");
  expect_refused("[]", ErrorCode::kInvalidData, " is array, expected an object");
}

void expect_load_fails(const std::filesystem::path& path, const std::string& message) {
  try {
    Tokenizer::load(path);
    FAIL() << "expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(TokenizerJsonErrors, NameTheFile) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "tokenizer.json";
  expect_load_fails(path, "cannot open " + path.string());
  write_test_file(path, "{");
  expect_load_fails(path, "(in " + path.string() + ")");
}

}  // namespace
}  // namespace tessera
