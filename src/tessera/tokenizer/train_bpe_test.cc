#include "tessera/tokenizer/train_bpe.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/tokenizer/byte_level.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string golden(const std::string& name) {
  return read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/golden/tokenizer/" + name);
}

// The merges as the lines of merges.txt.
std::string merge_lines(const Tokenizer& tokenizer) {
  std::string lines;
  for (const MergeRule& rule : tokenizer.spec().merges) {
    lines += to_byte_level(tokenizer.token_bytes(rule.left)) + " " +
             to_byte_level(tokenizer.token_bytes(rule.right)) + "\n";
  }
  return lines;
}

TEST(TrainBpe, MergesOfTheGolden) {
  const Tokenizer tokenizer = train_bpe(golden("corpus.txt"), {.vocab_size = 700});
  EXPECT_EQ(merge_lines(tokenizer), golden("merges.txt"));
  EXPECT_EQ(tokenizer.vocab_size(), 700);
}

TEST(TrainBpe, IdsBeginWithBytesAndEndWithSpecialTokens) {
  const Tokenizer tokenizer = train_bpe("abab", {.vocab_size = 260});
  EXPECT_EQ(tokenizer.token_bytes(0), "!");
  EXPECT_EQ(tokenizer.token_bytes(255), "\xAD");
  EXPECT_EQ(tokenizer.token_bytes(256), "ab");
  EXPECT_EQ(tokenizer.token_bytes(257), "abab");
  EXPECT_EQ(tokenizer.bos(), 258);
  EXPECT_EQ(tokenizer.eos(), 259);
  EXPECT_EQ(tokenizer.token_bytes(259), "<|end_of_text|>");
  EXPECT_TRUE(tokenizer.is_special(258));
}

// In "aaaaa" (a, a) is counted four times, but merged from the left, twice.
TEST(TrainBpe, OverlappingPairs) {
  const Tokenizer tokenizer = train_bpe("aaaaa", {.vocab_size = 260, .special_tokens = {"<e>"}});
  EXPECT_EQ(merge_lines(tokenizer), "a a\naa a\naa aaa\n");
}

// Equal counts: the smaller left id, then the smaller right id.
TEST(TrainBpe, TiesGoToSmallerIds) {
  EXPECT_EQ(merge_lines(train_bpe("yx bx", {.vocab_size = 259})), "b x\n");
  EXPECT_EQ(merge_lines(train_bpe("31 23 21", {.vocab_size = 259})), "2 1\n");
}

TEST(TrainBpe, SmallestVocabulary) {
  const Tokenizer tokenizer = train_bpe("", {.vocab_size = 256, .special_tokens = {}});
  EXPECT_EQ(tokenizer.vocab_size(), 256);
  EXPECT_EQ(tokenizer.bos(), std::nullopt);
  EXPECT_THAT(tokenizer.encode("!\""), ElementsAre(0, 1));
}

TEST(TrainBpe, AnyBytes) {
  std::string text;
  for (int i = 0; i < 4096; ++i) {
    text += static_cast<char>((i * 37 + i / 7) % 256);
  }
  const Tokenizer tokenizer = train_bpe(text, {.vocab_size = 400});
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_LT(tokenizer.encode(text).size(), text.size());
}

// One pre-token of a million bytes is taken in pieces, all alike: tokens are no longer than those.
TEST(TrainBpe, OneLongWord) {
  const Tokenizer tokenizer = train_bpe(std::string(1 << 20, 'a'), {.vocab_size = 256 + 14 + 2});
  EXPECT_EQ(tokenizer.token_bytes(256 + 13).size(), kMaxTrainedWordBytes);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, 'a')).size(), 64U);
}

// It is cut between characters, so that no token has a part of one that a word alone would not.
TEST(TrainBpe, LongWordsAreCutBetweenCharacters) {
  std::string text = "a";
  while (text.size() < 3 * kMaxTrainedWordBytes) {
    text += "灯";
  }
  const Tokenizer tokenizer = train_bpe(text, {.vocab_size = 259, .special_tokens = {}});
  EXPECT_EQ(merge_lines(tokenizer),
            "\u00e7 \u0123\n\u00e7\u0123 \u00af\n\u00e7\u0123\u00af \u00e7\u0123\u00af\n");
}

TEST(TrainBpe, RefusesByMemory) {
  TrainBpeOptions options = {.vocab_size = 260, .memory_bytes = 1000};
  EXPECT_EQ(train_bpe("abab abab abab", options).vocab_size(), 260);
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += "abc" + std::string(static_cast<std::size_t>(i), 'd') + " ";
  }
  try {
    train_bpe(text, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.message(), HasSubstr("and 1000 B are free: give fewer or smaller files"));
  }
}

TEST(TrainBpe, TellsHowFarItIs) {
  std::vector<std::pair<std::int64_t, std::int64_t>> calls;
  train_bpe("abcd abcd",
            {.vocab_size = 261, .on_progress = [&](std::int64_t done, std::int64_t all) {
               calls.emplace_back(done, all);
             }});
  EXPECT_THAT(calls, ElementsAre(std::pair(1, 3), std::pair(2, 3), std::pair(3, 3)));
}

void expect_refused(std::string_view text,
                    const TrainBpeOptions& options,
                    const std::string& message) {
  try {
    train_bpe(text, options);
    FAIL() << "expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

TEST(TrainBpe, Refuses) {
  expect_refused("abc",
                 {.vocab_size = 257},
                 "vocab_size is 257, but the 256 bytes and 2 special tokens need at least 258");
  expect_refused("abc abc",
                 {.vocab_size = 1000},
                 "vocab_size is 1000, but the text (7 bytes) allows 3 merges only: use at most "
                 "261, or more text");
  expect_refused("abc",
                 {.vocab_size = 300, .special_tokens = {"<x>", "<x>"}},
                 "the special token \"<x>\" is given twice");
  expect_refused("abc",
                 {.vocab_size = 300, .special_tokens = {""}},
                 "the special token \"\" is empty or not valid UTF-8");
  expect_refused("abc", {.vocab_size = 300, .special_tokens = {"\xFF"}}, "not valid UTF-8");
  expect_refused(
      "abc", {.vocab_size = 300, .special_tokens = {" \n"}}, "\" is white space alone, which");
  expect_refused("abc",
                 {.vocab_size = 258, .special_tokens = {"ab"}},
                 "the special token \"ab\" is what an ordinary token is called");
}

}  // namespace
}  // namespace tessera
