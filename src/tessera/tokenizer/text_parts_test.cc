// Long texts in parts: the ids of the whole, as the library or a tokenizer that may not cut has
// them.

#include "tessera/tokenizer/text_parts.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "tessera/base/file.h"
#include "tessera/base/random.h"
#include "tessera/base/test_directory.h"
#include "tessera/tokenizer/bpe_model.h"
#include "tessera/tokenizer/bpe_tokenizer.h"
#include "tessera/tokenizer/test_goldens.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tessera/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

// Texts of many parts: the strings of the goldens, words, what joins or changes neighbours, and
// bytes that are no UTF-8, in any order.
class RandomTexts {
 public:
  RandomTexts() {
    for (const Json& item : Json::parse(read_file(golden_path("sentencepiece.json")))) {
      strings_.push_back(item["given"].get<std::string>());
    }
    for (const char* text : {"a",
                             "the",
                             "7",
                             "1482",
                             "sea lantern",
                             "keeper's",
                             "\u0301",
                             "\u2581",
                             "e\u0301",
                             "\u00A0",
                             "\u3000",
                             "\u200B",
                             "\xE2",
                             "\xFF",
                             "<s>",
                             "\xEF\xAC\x81",
                             "Z",
                             "\u2581a"}) {
      strings_.emplace_back(text);
    }
  }

  std::string text(std::uint64_t seed, std::size_t bytes) const {
    constexpr std::array<std::string_view, 8> kJoints = {" ", " ", " ", " ", "", "  ", "\n", "\t"};
    const std::uint64_t key = random_key(seed, "parts");
    std::string text;
    for (std::uint32_t i = 0; text.size() < bytes; ++i) {
      const auto [string, joint, unused, also_unused] = philox(key, {i, 0, 0, 0});
      text += strings_[string % strings_.size()];
      text += kJoints[joint % kJoints.size()];
    }
    return text;
  }

  // Almost without spaces: characters of ASCII and others, some of which join what is before them.
  std::string dense(std::uint64_t seed, std::size_t bytes) const {
    constexpr std::array<std::string_view, 16> kOthers = {"\u4f60",
                                                          "\u597d",
                                                          "\u6d77",
                                                          "\u706f",
                                                          "\u3002",
                                                          "\uff0c",
                                                          "\u3042",
                                                          "\u3099",
                                                          "\u0301",
                                                          "\uAC00",
                                                          "\u2581",
                                                          " ",
                                                          "\n",
                                                          "the",
                                                          "\xE4",
                                                          "\uFF5E"};
    const std::uint64_t key = random_key(seed, "dense");
    std::string text;
    for (std::uint32_t i = 0; text.size() < bytes; ++i) {
      const auto [kind, which, unused, also_unused] = philox(key, {i, 0, 0, 0});
      if (kind % 4 == 0) {
        text += kOthers[which % kOthers.size()];
      } else {
        text += static_cast<char>('!' + which % ('~' - '!' + 1));
      }
    }
    return text;
  }

 private:
  std::vector<std::string> strings_;
};

TEST(TextParts, BeginAtASpaceBetweenWords) {
  const std::string words = "it is7 z";
  std::string text(std::size_t{16} << 10U, 'x');
  text += ". a  b \u00E9 c\td " + words + text + " y. z";
  std::vector<std::string> parts;
  const PartRule rule{.bytes = kPartBytes};
  for_each_part(text, PartBegin::kText, rule, [&](std::string_view part, PartBegin begin) {
    EXPECT_EQ(begin, parts.empty() ? PartBegin::kText : PartBegin::kSpace);
    parts.emplace_back(part);
  });
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_TRUE(parts[0].ends_with(" c\td"));
  EXPECT_TRUE(parts[1].starts_with(" it is7 zxx"));
  EXPECT_EQ(parts[2], " y. z");
  EXPECT_EQ(parts[0] + parts[1] + parts[2], text);

  std::vector<std::size_t> sizes;
  const auto note = [&](std::string_view part, PartBegin) { sizes.push_back(part.size()); };
  for_each_part(text, PartBegin::kText, {}, note);
  for_each_part(std::string(40000, ' '), PartBegin::kText, rule, note);
  for_each_part("", PartBegin::kText, rule, note);
  for_each_part("", PartBegin::kWord, rule, note);
  EXPECT_THAT(sizes, ElementsAre(text.size(), 40000U, 0U));
}

TEST(TextParts, BeginAnywhereWhereThereIsNoPlace) {
  const std::string text = "\u00e9\u4f60" + std::string(30, 'x') + " a b";
  std::vector<std::string> parts;
  for_each_part(text,
                PartBegin::kText,
                {.bytes = 2, .most = 10},
                [&](std::string_view part, PartBegin begin) {
                  EXPECT_EQ(begin, begin_of(part, !parts.empty()));
                  parts.emplace_back(part);
                });
  EXPECT_THAT(parts,
              ElementsAre("\u00e9\u4f60xxxxx", "xxxxxxxxxx", "xxxxxxxxxx", "xxxxx", " a", " b"));
  parts.clear();
  for_each_part("\u4f60\u4f60\u4f60",
                PartBegin::kText,
                {.bytes = 2, .most = 5},
                [&](std::string_view part, PartBegin) { parts.emplace_back(part); });
  EXPECT_THAT(parts, ElementsAre("\u4f60", "\u4f60", "\u4f60"));
}

TEST(TextParts, BeginWhereNoTokenReachesOver) {
  Joints joints;
  for (const char* token :
       {"a", "b", "c", "A", "\u4f60", "\u597d", "ab", "b\u4f60c", "\u0301", "x-"}) {
    joints.add(token);
  }
  const auto may_part = [&](std::string_view left, std::string_view right) {
    return joints.may_part(std::string(left) + std::string(right), left.size());
  };
  EXPECT_TRUE(may_part("b", "aa"));
  EXPECT_TRUE(may_part("\u4f60", "\u597dc"));
  EXPECT_TRUE(may_part("bA", "c "));
  EXPECT_FALSE(may_part("a", "bb")) << "a token has both";
  EXPECT_FALSE(may_part("b", "\u4f60a")) << "and the middle of one";
  EXPECT_FALSE(may_part("b", "a")) << "what follows is not known";
  EXPECT_FALSE(may_part("b", "a\u0301")) << "and may join";
  EXPECT_FALSE(may_part("b", "xa")) << "x is no token";
  EXPECT_FALSE(may_part("\u0301", "aa"));
  EXPECT_FALSE(may_part("b", "\xE4\xBD"));
  EXPECT_FALSE(may_part("\xBD", "aa"));
  joints.fold_case();
  EXPECT_FALSE(may_part("A", "ca"));
  EXPECT_TRUE(may_part("b", "aa"));
}

TEST(TextParts, TokensThatReachOverASpace) {
  for (const char* token : {"", "a", " ", "  a", "\u2581", "\u2581\u2581a", " \u2581", "\u2580a"}) {
    EXPECT_FALSE(spans_words(token)) << token;
  }
  for (const char* token : {"a ", "a\u2581", "\u2581a\u2581b", " a b", "\u00E9 ", "\u2580\u2581"}) {
    EXPECT_TRUE(spans_words(token)) << token;
  }
}

// The ids of a text that is cut at places which the tokenizer gives, some thousand bytes apart
// where that can be; `num_parts` counts.
Ids in_parts(const Tokenizer& tokenizer,
             std::string_view text,
             std::uint64_t seed,
             int& num_parts) {
  const std::uint64_t key = random_key(seed, "cuts");
  Ids ids;
  bool continues = false;
  for (std::uint64_t i = 0; !text.empty(); ++i) {
    auto most = static_cast<std::size_t>(1 + 4000 * uniform(key, i));
    std::size_t cut = tokenizer.find_cut(text, most);
    for (; cut == 0 && most < text.size(); most *= 2) {
      cut = tokenizer.find_cut(text, 2 * most);
    }
    cut = cut > 0 ? cut : text.size();
    tokenizer.encode(text.substr(0, cut), ids, {.continues = continues});
    text.remove_prefix(cut);
    continues = true;
    ++num_parts;
  }
  return ids;
}

// characters.json with a patch, but without its added token "sea lantern", which reaches over cuts
// of a text.
TokenizerSpec without_sea_lantern(const Json& patch) {
  Json file = Json::parse(read_file(golden_path("characters.json")));
  file.merge_patch(patch);
  Json& added = file["added_tokens"];
  for (std::size_t i = 0; i < added.size(); ++i) {
    if (added[i]["content"] == "sea lantern") {
      added[i]["content"] = "sea-lantern";
    }
  }
  return parse_tokenizer_json(file.dump());
}

bool cuts(const TokenizerSpec& spec) {
  return BpeTokenizer(spec).part_rule().bytes > 0;
}

// A tokenizer that differs in an added token alone, which no text here has, must take texts whole.
TEST(TextParts, OfATokenizerJson) {
  const RandomTexts texts;
  for (const Json& pipeline : Json::parse(read_file(golden_path("pipelines.json")))) {
    SCOPED_TRACE(pipeline["name"]);
    Json file = Json::parse(read_file(golden_path("characters.json")));
    file.merge_patch(pipeline["patch"]);
    const TokenizerSpec spec = parse_tokenizer_json(file.dump());
    TokenizerSpec uncut = spec;
    uncut.tokens.emplace_back("q q q");
    uncut.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()),
                           .content = "q q q",
                           .special = false,
                           .normalized = true});
    // "sea lantern" is looked for in normalized text by that one alone.
    EXPECT_EQ(cuts(spec), pipeline["name"] != "nfkc, unknown one by one");
    ASSERT_FALSE(cuts(uncut));
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const std::string text = seed < 2 ? texts.text(seed, 300'000) : texts.dense(seed, 300'000);
      const Ids whole = Tokenizer(uncut).encode(text);
      EXPECT_TRUE(Tokenizer(spec).encode(text) == whole) << seed;
      EXPECT_EQ(Tokenizer(spec).find_cut(text, text.size()), 0U);
    }
  }
}

// Of `letters` letters that are drawn one by one, now and then a run of one.
std::string random_word(std::uint64_t seed, unsigned letters) {
  const std::uint64_t key = random_key(seed, "word");
  std::string word;
  for (std::uint32_t i = 0; word.size() < 200'000; ++i) {
    const auto [letter, run, length, unused] = philox(key, {i, 0, 0, 0});
    const auto repeats = run % 64 == 0 ? length % 3'000 : 1;
    word += run % 8 == 1 ? "the" : std::string(repeats, static_cast<char>('a' + letter % letters));
  }
  return word;
}

// One word by the pattern, as long as the text: merged in blocks, or as the model has it.
TEST(TextParts, OfALongWordOfBytes) {
  const Tokenizer tokenizer = Tokenizer::load(golden_path("llama3.tiktoken"));
  const BpeModel model(tokenizer.spec());
  for (const unsigned letters : {1U, 2U, 3U, 5U, 8U, 13U, 20U, 26U}) {
    SCOPED_TRACE(letters);
    const std::string word = random_word(1, letters);
    MergeScratch scratch;
    Ids whole;
    model.encode_word(word, scratch, whole);
    std::size_t largest = 0;
    Ids ids;
    tokenizer.encode(word, [&](std::span<const std::int32_t> part) {
      ids.insert(ids.end(), part.begin(), part.end());
      largest = std::max(largest, part.size());
    });
    EXPECT_TRUE(ids == whole);
    EXPECT_LT(largest, ids.size());
  }
}

// The same of characters, some of which are bytes to the tokenizer.
TEST(TextParts, OfALongWordOfCharacters) {
  TokenizerSpec spec = without_sea_lantern(Json::object());
  spec.tokens.emplace_back("q q q");  // reaches over spaces: then nothing else is cut
  spec.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()) - 1,
                        .content = "q q q",
                        .special = false,
                        .normalized = true});
  const Tokenizer tokenizer(spec);
  ASSERT_FALSE(cuts(spec));
  const BpeModel model(spec);
  for (const unsigned letters : {1U, 2U, 5U, 26U}) {
    SCOPED_TRACE(letters);
    std::string word = random_word(3, letters);
    for (std::size_t at = 500; at < word.size(); at += 700) {
      word.insert(at, at % 3 == 0 ? "\u4f60\u597d\u706f" : at % 3 == 1 ? "\U0001F41A" : "\u00e9");
    }
    MergeScratch scratch;
    Ids whole;
    model.encode_word(std::string(kSpaceSymbol) + word, scratch, whole);
    std::size_t largest = 0;
    Ids ids;
    tokenizer.encode(word, [&](std::span<const std::int32_t> part) {
      ids.insert(ids.end(), part.begin(), part.end());
      largest = std::max(largest, part.size());
    });
    EXPECT_TRUE(ids == whole);
    EXPECT_TRUE(letters == 1 || largest < ids.size());
  }
}

// A merge that a later one makes possible, and whole words that no merges make.
TEST(TextParts, OfALongWordWithMergesOutOfOrder) {
  TokenizerSpec spec;
  spec.alphabet = Alphabet::kBytes;
  for (int byte = 0; byte < 256; ++byte) {
    spec.tokens.emplace_back(1, static_cast<char>(byte));
  }
  const auto merge = [&](const std::string& left, const std::string& right) {
    const auto id = [&](const std::string& token) {
      const auto at = std::ranges::find(spec.tokens, token);
      const auto found = static_cast<std::int32_t>(at - spec.tokens.begin());
      if (at == spec.tokens.end()) {
        spec.tokens.push_back(token);
      }
      return found;
    };
    const std::int32_t result = id(left + right);
    spec.merges.push_back({.left = id(left), .right = id(right), .result = result});
  };
  merge("ab", "c");
  merge("b", "a");
  merge("a", "bca");
  merge("a", "b");
  merge("c", "a");
  merge("b", "ca");
  merge("aa", "aa");
  merge("a", "a");
  merge("abc", "abc");
  spec.ignore_merges = true;
  for (int i = 2; i < 30; ++i) {
    spec.tokens.push_back(random_word(static_cast<std::uint64_t>(i), 3).substr(0, 40));
  }
  const Tokenizer tokenizer(spec);
  const BpeModel model(spec);
  for (const unsigned letters : {1U, 2U, 3U, 4U}) {
    const std::string word = random_word(7, letters);
    MergeScratch scratch;
    Ids whole;
    model.encode_word(word, scratch, whole);
    EXPECT_TRUE(tokenizer.encode(word) == whole) << letters;
  }
}

// Behind an added token a text begins anew, and gets what a tokenizer puts in front of one.
TEST(TextParts, OfATokenizerWithAddedTokens) {
  const RandomTexts texts;
  for (const Json& pipeline : Json::parse(read_file(golden_path("pipelines.json")))) {
    SCOPED_TRACE(pipeline["name"]);
    TokenizerSpec spec = without_sea_lantern(pipeline["patch"]);
    for (const char* content : {"the", "\u4f60\u597d", "x!", "\n", "  "}) {
      spec.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()),
                            .content = content,
                            .special = false,
                            .normalized = false});
      spec.tokens.emplace_back(content);
    }
    const Tokenizer tokenizer(spec);
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const std::string text = seed < 2 ? texts.text(seed, 100'000) : texts.dense(seed, 100'000);
      int num_parts = 0;
      EXPECT_TRUE(in_parts(tokenizer, text, seed, num_parts) == tokenizer.encode(text)) << seed;
      EXPECT_EQ(num_parts > 20, cuts(spec));
    }
  }
}

TEST(TextParts, OfATokenizerOfBytes) {
  const RandomTexts texts;
  TokenizerSpec spec = Tokenizer::load(golden_path("llama3.tiktoken")).spec();
  spec.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()),
                        .content = "keeper",
                        .special = false,
                        .normalized = false});
  spec.tokens.emplace_back("keeper");
  const Tokenizer tokenizer(spec);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const std::string text = seed < 2 ? texts.text(seed, 100'000) : texts.dense(seed, 100'000);
    int num_parts = 0;
    EXPECT_TRUE(in_parts(tokenizer, text, seed, num_parts) == tokenizer.encode(text)) << seed;
    EXPECT_GT(num_parts, 10);
  }
}

TEST(TextParts, OfATokenizerJsonThatMayNotCut) {
  const auto may_cut = [](const char* patch) {
    Json file = Json::parse(read_file(golden_path("characters.json")));
    file.merge_patch(Json::parse(patch));
    return cuts(parse_tokenizer_json(file.dump()));
  };
  EXPECT_TRUE(may_cut("{}"));
  // Then a text is a word, which may be a token as a whole.
  EXPECT_FALSE(may_cut(R"({"model": {"ignore_merges": true}})"));
  EXPECT_FALSE(may_cut(R"({"normalizer": {"type": "Replace", "pattern": {"String": " "},
                           "content": "_", "normalizers": null}})"));
  EXPECT_FALSE(may_cut(R"({"normalizer": {"normalizers": [
      {"type": "Replace", "pattern": {"String": "a b"}, "content": "c"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}})"));
}

struct Model {
  const char* name;
  std::unordered_map<std::string, std::string> options;
  bool is_cut;
};

// Encodes as the library does with the whole text. Of a text that is cut the ids come in parts.
void expect_ids_of_the_library(const std::string& model, bool is_cut) {
  const TestDirectory directory;
  write_test_file(directory.path() / "tokenizer.model", model);
  const Tokenizer tokenizer = Tokenizer::load(directory.path());
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(model).ok());
  const RandomTexts texts;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::string text = seed < 3 ? texts.text(seed, 300'000) : texts.dense(seed, 300'000);
    Ids ids;
    std::size_t largest = 0;
    tokenizer.encode(text, [&](std::span<const std::int32_t> part) {
      ids.insert(ids.end(), part.begin(), part.end());
      largest = std::max(largest, part.size());
    });
    EXPECT_TRUE(ids == library.EncodeAsIds(text)) << seed;
    int num_parts = 0;
    EXPECT_TRUE(in_parts(tokenizer, text, seed, num_parts) == ids) << seed;
    EXPECT_EQ(num_parts > 1, is_cut) << seed;
    ASSERT_GT(ids.size(), 80'000U);
    EXPECT_EQ(largest < ids.size(), is_cut);
  }
}

TEST(TextParts, OfASentencePieceModel) {
  expect_ids_of_the_library(read_file(golden_path("sentencepiece.model")), true);
}

// Nothing is lost where a text is cut because it has become too long.
TEST(TextParts, OfATextWithoutAnyPlace) {
  const Tokenizer tokenizer = Tokenizer::load(golden_path("sentencepiece.model"));
  const std::string text(std::size_t{3} << 20U, 'e');
  Ids ids;
  std::size_t num_parts = 0;
  tokenizer.encode(text, [&](std::span<const std::int32_t> part) {
    ids.insert(ids.end(), part.begin(), part.end());
    num_parts += part.empty() ? 0 : 1;
  });
  EXPECT_EQ(num_parts, 3U);
  EXPECT_TRUE(tokenizer.decode(ids) == text);
}

class SentencePieceParts : public testing::TestWithParam<Model> {};

TEST_P(SentencePieceParts, AreTheWhole) {
  std::unordered_map<std::string, std::string> options = {
      {"input", golden_path("corpus.txt").string()},
      {"vocab_size", "500"},
      {"model_type", "bpe"},
      {"byte_fallback", "true"},
      {"character_coverage", "0.99"},
      {"minloglevel", "2"}};
  for (const auto& [key, value] : GetParam().options) {
    options[key] = value;
  }
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, nullptr, &model);
  ASSERT_TRUE(status.ok()) << status.ToString();
  expect_ids_of_the_library(model, GetParam().is_cut);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    SentencePieceParts,
    testing::Values(
        Model{"Defaults", {}, true},
        Model{"CaseFolding", {{"normalization_rule_name", "nmt_nfkc_cf"}}, true},
        Model{"ExtraSpaces",
              {{"normalization_rule_name", "identity"}, {"remove_extra_whitespaces", "false"}},
              true},
        Model{"NoPrefix",
              {{"add_dummy_prefix", "false"}, {"remove_extra_whitespaces", "false"}},
              true},
        // A part that begins with a space would lose it.
        Model{"NoPrefixNorExtraSpaces", {{"add_dummy_prefix", "false"}}, false},
        Model{"UnknownCharacters", {{"byte_fallback", "false"}, {"vocab_size", "300"}}, true},
        Model{"UserSymbols", {{"user_defined_symbols", "the,\u2581keeper,<sep>,sea"}}, true},
        Model{"UserSymbolOfTwoWords", {{"user_defined_symbols", "a\u2581b"}}, false},
        Model{"PiecesOfWords", {{"split_by_whitespace", "false"}}, false},
        Model{"Suffix", {{"treat_whitespace_as_suffix", "true"}}, false},
        // Rounded otherwise, but not so that a word of these texts changes.
        Model{"Unigram", {{"model_type", "unigram"}, {"vocab_size", "420"}}, true}),
    [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace tessera
