#include "tessera/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// Written by tests/golden/make_tokenizer_goldens.py.
std::string golden(const std::string& name) {
  return read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/golden/tokenizer/" + name);
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string repeated(const std::string& unit, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += unit;
  }
  return text;
}

TokenizerSpec byte_spec() {
  TokenizerSpec spec;
  spec.splits = {{.pattern = std::string(kLlama3Pattern)}};
  for (const std::uint8_t byte : byte_level_order()) {
    spec.tokens.emplace_back(1, static_cast<char>(byte));
  }
  return spec;
}

std::int32_t id_of(const TokenizerSpec& spec, const std::string& bytes) {
  const auto found = std::ranges::find(spec.tokens, bytes);
  EXPECT_NE(found, spec.tokens.end()) << bytes;
  return static_cast<std::int32_t>(found - spec.tokens.begin());
}

void add_merge(TokenizerSpec& spec, const std::string& left, const std::string& right) {
  const auto result = static_cast<std::int32_t>(spec.tokens.size());
  spec.tokens.push_back(left + right);
  spec.merges.push_back({.left = id_of(spec, left), .right = id_of(spec, right), .result = result});
}

void add_token(TokenizerSpec& spec, const std::string& content, bool special) {
  spec.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()),
                        .content = content,
                        .special = special,
                        .normalized = false});
  spec.tokens.push_back(content);
}

const Tokenizer& trained() {
  static const Tokenizer kTokenizer = train_bpe(golden("corpus.txt"), {.vocab_size = 700});
  return kTokenizer;
}

std::vector<std::size_t> piece_sizes(std::string_view pattern, std::string_view text) {
  std::vector<std::size_t> sizes;
  PreTokenizer(Split{.pattern = std::string(pattern)}).split(text, [&](std::string_view piece) {
    sizes.push_back(piece.size());
  });
  return sizes;
}

TEST(TokenizerGolden, PreTokensAndIds) {
  int num_cases = 0;
  for (const Json& item : Json::parse(golden("cases.json"))) {
    if (item.contains("repeat")) {
      continue;
    }
    const std::string text = from_hex(item["hex"]);
    SCOPED_TRACE(item["name"]);
    EXPECT_EQ(piece_sizes(kGpt2Pattern, text), item["gpt2"].get<std::vector<std::size_t>>());
    EXPECT_EQ(piece_sizes(kLlama3Pattern, text), item["llama3"].get<std::vector<std::size_t>>());
    const std::vector<std::int32_t> ids = trained().encode(text);
    EXPECT_EQ(ids, item["ids"].get<std::vector<std::int32_t>>());
    EXPECT_EQ(trained().decode(ids), text);
    ++num_cases;
  }
  EXPECT_GT(num_cases, 90);
}

// The regex engine in place of the scanner gives the same ids.
TEST(TokenizerGolden, WithRegexEngine) {
  TokenizerSpec spec = trained().spec();
  spec.splits = {{.pattern = "(?:" + std::string(kLlama3Pattern) + ")"}};
  const Tokenizer tokenizer(spec);
  for (const Json& item : Json::parse(golden("cases.json"))) {
    if (!item.contains("repeat")) {
      EXPECT_EQ(tokenizer.encode(from_hex(item["hex"])),
                item["ids"].get<std::vector<std::int32_t>>())
          << item["name"];
    }
  }
}

// Long pre-tokens: quadratic time would not end here.
TEST(TokenizerGolden, Repeated) {
  int num_cases = 0;
  for (const Json& item : Json::parse(golden("cases.json"))) {
    if (!item.contains("repeat")) {
      continue;
    }
    SCOPED_TRACE(item["name"]);
    const std::string text = repeated(from_hex(item["hex"]), item["repeat"]);
    std::vector<std::int32_t> expected;
    for (const Json& run : item["runs"]) {
      expected.insert(expected.end(), run[1].get<std::size_t>(), run[0].get<std::int32_t>());
    }
    const std::vector<std::int32_t> ids = trained().encode(text);
    EXPECT_TRUE(ids == expected);
    EXPECT_TRUE(trained().decode(ids) == text);
    ++num_cases;
  }
  EXPECT_GE(num_cases, 5);
}

// Rules whose order no training gives, on short and long words: the first rule is merged first,
// even if another merge has only just made its sides.
TEST(TokenizerGolden, ShuffledMerges) {
  const Json shuffled = Json::parse(golden("shuffled.json"));
  TokenizerSpec spec = byte_spec();
  for (const Json& merge : shuffled["merges"]) {
    spec.tokens.push_back(merge[0].get<std::string>() + merge[1].get<std::string>());
  }
  for (std::size_t i = 0; i < shuffled["merges"].size(); ++i) {
    const Json& merge = shuffled["merges"][i];
    spec.merges.push_back({.left = id_of(spec, merge[0]),
                           .right = id_of(spec, merge[1]),
                           .result = static_cast<std::int32_t>(256 + i)});
  }
  const Tokenizer tokenizer(spec);
  for (const Json& word : shuffled["words"]) {
    EXPECT_EQ(tokenizer.encode(word["text"].get<std::string>()),
              word["ids"].get<std::vector<std::int32_t>>())
        << word["text"];
  }
}

TEST(Tokenizer, RandomBytesRoundTrip) {
  const std::uint64_t key = random_key(1, "bytes");
  std::uint64_t index = 0;
  for (std::size_t size = 0; size < 300; ++size) {
    std::string text;
    for (std::size_t i = 0; i < size; ++i) {
      text += static_cast<char>(static_cast<int>(uniform(key, index++) * 256));
    }
    EXPECT_EQ(trained().decode(trained().encode(text)), text);
  }
}

TEST(Tokenizer, AppendsAndReturnsTheSame) {
  std::vector<std::int32_t> ids = {7};
  trained().encode("the lighthouse", ids);
  std::vector<std::int32_t> expected = trained().encode("the lighthouse");
  expected.insert(expected.begin(), 7);
  EXPECT_EQ(ids, expected);
}

TEST(Tokenizer, PartsAreTheWhole) {
  const std::string text = repeated(golden("corpus.txt"), 500);
  std::vector<std::int32_t> joined;
  std::size_t num_parts = 0;
  trained().encode(text, [&](std::span<const std::int32_t> part) {
    joined.insert(joined.end(), part.begin(), part.end());
    ++num_parts;
  });
  EXPECT_GT(num_parts, 2U);
  EXPECT_EQ(joined, trained().encode(text));
}

// A word that the cache remembers gives the ids of its first occurrence, wherever it stands.
TEST(Tokenizer, WordsDoNotDependOnTheirNeighbours) {
  const std::string corpus = golden("corpus.txt");
  std::vector<std::int32_t> by_word;
  PreTokenizer(Split{.pattern = std::string(kLlama3Pattern)})
      .split(corpus, [&](std::string_view word) { trained().encode(word, by_word); });
  const std::size_t num_ids = by_word.size();
  const std::vector<std::int32_t> ids = trained().encode(repeated(corpus, 20));
  ASSERT_EQ(ids.size(), num_ids * 20);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(ids[i], by_word[i % num_ids]);
  }
}

// Words of few bytes but more tokens than the cache keeps.
TEST(Tokenizer, WordsOfManyTokens) {
  const std::uint64_t key = random_key(2, "continuation bytes");
  std::uint64_t index = 0;
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += 'a';
    for (int size = 12 + i % 4; size > 0; --size) {
      text += static_cast<char>(0x80 + static_cast<int>(uniform(key, index++) * 64));
    }
  }
  text += text;
  EXPECT_EQ(trained().decode(trained().encode(text)), text);
}

TEST(Tokenizer, ThreadsShareOne) {
  const std::string corpus = golden("corpus.txt");
  const std::vector<std::int32_t> expected = trained().encode(corpus);
  std::vector<std::vector<std::int32_t>> results(4);
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (auto& result : results) {
    threads.emplace_back([&, copy = trained()] { result = copy.encode(corpus); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& result : results) {
    EXPECT_EQ(result, expected);
  }
}

// What calls have learned changes no later one: a tokenizer that has seen more words than it can
// remember, on several threads, gives what a new one gives.
TEST(Tokenizer, WhatIsRememberedChangesNothing) {
  const Tokenizer used(trained().spec());
  const auto words = [](std::uint64_t key) {
    std::string text;
    for (std::uint64_t i = 0; i < 30'000; ++i) {
      const double draw = uniform(key, i);
      text += format(" {:x}", static_cast<std::int64_t>(draw * draw * 60'000));
    }
    return text;
  };
  std::vector<std::vector<std::int32_t>> results(4);
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      used.encode(words(100 + i));
      results[i] = used.encode(words(i));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i], Tokenizer(trained().spec()).encode(words(i))) << i;
  }
}

TEST(Tokenizer, IgnoreMergesTakesWholeTokens) {
  TokenizerSpec spec = byte_spec();
  add_merge(spec, "a", "b");
  add_merge(spec, "b", "c");
  add_merge(spec, "a", "bc");
  EXPECT_THAT(Tokenizer(spec).encode("abc"), ElementsAre(256, id_of(spec, "c")));
  spec.ignore_merges = true;
  EXPECT_THAT(Tokenizer(spec).encode("abc"), ElementsAre(258));
  EXPECT_THAT(Tokenizer(spec).encode("abcc"), ElementsAre(256, id_of(spec, "c"), id_of(spec, "c")));
}

TEST(Tokenizer, SpecialTokensAreTextUnlessAsked) {
  const std::int32_t eos = 699;
  ASSERT_EQ(trained().eos(), eos);
  const std::string text = "a<|end_of_text|>b<|end_of_text|><|end_of";
  const std::vector<std::int32_t> plain = trained().encode(text);
  EXPECT_EQ(std::ranges::count(plain, eos), 0);
  EXPECT_EQ(trained().decode(plain), text);

  const std::vector<std::int32_t> parsed = trained().encode(text, {.parse_special = true});
  EXPECT_EQ(std::ranges::count(parsed, eos), 2);
  EXPECT_EQ(parsed[1], eos);
  EXPECT_EQ(trained().decode(parsed), "ab<|end_of");
  EXPECT_EQ(trained().decode(parsed, {.skip_special = false}), text);
}

// The leftmost added token, then the longest; special ones, and text around, as without the others.
TEST(Tokenizer, AddedTokens) {
  TokenizerSpec spec = byte_spec();
  add_merge(spec, "a", "b");
  add_token(spec, "<x>", true);     // 257
  add_token(spec, "ab|", false);    // 258
  add_token(spec, "ab|ab", false);  // 259
  add_token(spec, "b|灯", false);   // 260
  const Tokenizer tokenizer(spec);
  const std::int32_t a = id_of(spec, "a");
  EXPECT_THAT(tokenizer.encode("ab|ab|ab"), ElementsAre(259, id_of(spec, "|"), 256));
  EXPECT_THAT(tokenizer.encode("ab|aab"), ElementsAre(258, a, 256));
  EXPECT_THAT(tokenizer.encode("aab|灯"),
              ElementsAre(a, 258, id_of(spec, "\xE7"), id_of(spec, "\x81"), id_of(spec, "\xAF")));
  EXPECT_THAT(tokenizer.encode("cb|灯"), ElementsAre(id_of(spec, "c"), 260));
  EXPECT_EQ(tokenizer.encode("<x>").size(), 3U);
  EXPECT_THAT(tokenizer.encode("ab|<x>ab", {.parse_special = true}), ElementsAre(258, 257, 256));
  EXPECT_EQ(tokenizer.decode(std::vector{258, 257, 260}), "ab|b|灯");
  EXPECT_EQ(tokenizer.token_bytes(260), "b|灯");
  EXPECT_TRUE(tokenizer.is_special(257));
  EXPECT_FALSE(tokenizer.is_special(258));
}

TEST(Tokenizer, DocumentEndsByName) {
  TokenizerSpec spec = byte_spec();
  EXPECT_EQ(Tokenizer(spec).bos(), std::nullopt);
  add_token(spec, "<|begin_of_text|>", false);
  EXPECT_EQ(Tokenizer(spec).bos(), std::nullopt);
  add_token(spec, "<|endoftext|>", true);
  EXPECT_EQ(Tokenizer(spec).bos(), 257);
  EXPECT_EQ(Tokenizer(spec).eos(), 257);
  add_token(spec, "</s>", true);
  EXPECT_EQ(Tokenizer(spec).bos(), 257);
  EXPECT_EQ(Tokenizer(spec).eos(), 258);
}

template <class Body>
void expect_error(Body&& body, ErrorCode code, const std::string& message) {
  try {
    body();
    FAIL() << "expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

TEST(Tokenizer, RefusesIdsOutOfRange) {
  expect_error([] { trained().decode(std::vector{1, 700}); },
               ErrorCode::kInvalidArgument,
               "id 1 of 2 to decode is 700, but the tokenizer has ids 0 to 699");
  expect_error([] { trained().decode(std::vector{-1}); },
               ErrorCode::kInvalidArgument,
               "id 0 of 1 to decode is -1");
  expect_error([] { trained().token_bytes(700); },
               ErrorCode::kInvalidArgument,
               "the token id is 700, but the tokenizer has ids 0 to 699");
}

TEST(Tokenizer, RefusesBrokenSpecs) {
  const auto expect_refused = [](auto&& change, const std::string& message) {
    TokenizerSpec spec = byte_spec();
    add_merge(spec, "a", "b");
    add_token(spec, "<x>", true);
    change(spec);
    expect_error([&] { Tokenizer{spec}; }, ErrorCode::kInvalidArgument, message);
  };
  expect_refused([](TokenizerSpec& spec) { spec.merges[0].left = 258; },
                 "the left side of a merge has the id 258, but there are 258 tokens");
  expect_refused([](TokenizerSpec& spec) { spec.merges[0].right = -1; },
                 "the right side of a merge has the id -1");
  expect_refused([](TokenizerSpec& spec) { std::swap(spec.merges[0].left, spec.merges[0].right); },
                 "token 256 is not tokens 65 and 64 joined, as a merge says");
  expect_refused([](TokenizerSpec& spec) { spec.added[0].content = "<y>"; },
                 "added token 257 is \"<y>\", expected the text of token 257");
  expect_refused([](TokenizerSpec& spec) { spec.added[0].content = spec.tokens[257] = "\xFF"; },
                 "expected the text of token 257, valid UTF-8 and not empty");
  expect_refused([](TokenizerSpec& spec) { spec.added[0].id = 258; },
                 "an added token has the id 258");
  expect_error(
      [] {
        TokenizerSpec spec = byte_spec();
        spec.splits = {{.pattern = "a("}};
        Tokenizer{spec};
      },
      ErrorCode::kInvalidData,
      "the pattern does not compile");
}

}  // namespace
}  // namespace tessera
